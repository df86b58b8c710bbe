// torch_dist checkpoints that Megatron-LM wrote, against the tensors that its model and optimizer held.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "megatron/bridge/megatron/checkpoint.h"
#include "megatron/bridge/megatron/convert.h"
#include "megatron/checkpoint/checkpoint_kind.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/safetensors.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

const std::string kRoot = MEGATRON_GOLDEN_DIR "/megatron_ckpt/";

// Where a tensor of expected.safetensors stands among ours: experts are one tensor each there.
struct OurPlace {
  std::string name;
  int64_t expert = -1;
};

OurPlace our_place(std::string name) {
  for (const auto& [theirs, ours] : {std::pair{"model.", ""},
                                     {"exp_avg.", "optimizer.exp_avg."},
                                     {"exp_avg_sq.", "optimizer.exp_avg_sq."}})
    if (name.starts_with(theirs)) {
      name = ours + name.substr(std::strlen(theirs));
      break;
    }
  const std::string local = "mlp.experts.local_experts.";
  const size_t at = name.find(local);
  if (at == std::string::npos) return {name};
  const size_t begin = at + local.size(), end = name.find('.', begin);
  return {name.substr(0, at) + "mlp.experts.experts." + name.substr(end + 1),
          std::stoll(name.substr(begin, end - begin))};
}

void expect_same(const Tensor& ours, const Tensor& theirs, const std::string& name) {
  ASSERT_EQ(ours.shape(), theirs.shape()) << name;
  ASSERT_EQ(ours.dtype(), theirs.dtype()) << name;
  ASSERT_TRUE(ours.is_contiguous() && theirs.is_contiguous()) << name;
  EXPECT_EQ(std::memcmp(ours.raw(), theirs.raw(), ours.bytes()), 0) << name;
}

class MegatronCheckpoints : public ::testing::TestWithParam<std::string> {
 protected:
  std::string directory() const { return kRoot + GetParam() + "/torch_dist"; }
  SafetensorsFile expected() const { return SafetensorsFile(kRoot + GetParam() + "/expected.safetensors"); }
};

TEST_P(MegatronCheckpoints, ImportEqualsWhatTheRunHeld) {
  TempDir dir;
  std::vector<std::string> notes;
  import_megatron(directory(), dir / "out",
                  {.files = 2, .note = [&](const std::string& note) { notes.push_back(note); }});
  CheckpointReader reader(dir / "out");
  EXPECT_EQ(reader.state().iteration, 2);
  EXPECT_EQ(reader.state().consumed_samples, 2);  // the scheduler's steps, each of one sample
  const Json& kept = reader.state().extra.at("megatron_lm");
  EXPECT_EQ(kept.at("opt_param_scheduler").at("lr_decay_style"), Json("cosine"));
  EXPECT_EQ(kept.at("opt_param_scheduler").at("lr_decay_steps"), Json(20));
  EXPECT_EQ(kept.at("optimizer_steps"), Json(2));
  EXPECT_EQ(kept.at("param_groups").size(), 2u);
  EXPECT_FALSE(notes.empty());

  RankContext ctx;
  const SafetensorsFile want = expected();
  std::set<std::string> used;
  for (const std::string& name : want.names()) {
    const OurPlace place = our_place(name);
    used.insert(place.name);
    const StoredTensor* stored = reader.index().find(place.name);
    ASSERT_TRUE(stored) << place.name;
    Tensor whole = host_tensor(stored->shape, stored->dtype);
    const ShardedTensor target{place.name, ShardSpec::whole(stored->shape), whole};
    reader.load(ctx, {&target, 1});
    expect_same(place.expert < 0 ? whole : whole.select(0, place.expert), want.tensor(name), name);
  }
  for (const StoredTensor& tensor : reader.index().tensors)
    EXPECT_TRUE(used.contains(tensor.name) || tensor.name.starts_with("optimizer.")) << tensor.name;
}

// What any layout asks for: halves of each dimension, and parts that alternate.
TEST_P(MegatronCheckpoints, AnyShardIsReadInPlace) {
  RankContext ctx;
  const MegatronCheckpoint checkpoint = open_megatron(directory());
  for (const MegatronTensor& tensor : checkpoint.tensors) {
    const Tensor whole = host_tensor(tensor.shape, tensor.dtype);
    tensor.read(ctx, ShardSpec::whole(tensor.shape), whole);
    for (int dim = 0; dim < tensor.shape.rank(); ++dim) {
      if (tensor.shape[dim] % 4 != 0) continue;
      const std::vector<int64_t> parts(2, tensor.shape[dim] / 2);
      const Tensor again = host_tensor(tensor.shape, tensor.dtype);
      for (int rank = 0; rank < 2; ++rank) {
        const ShardSpec shard = ShardSpec::split_parts(tensor.shape, dim, parts, rank, 2);
        const Tensor local = host_tensor(shard.local_shape, tensor.dtype);
        tensor.read(ctx, shard, local);
        for (const ShardBlock& block : shard.blocks)
          copy_host(box_of(local, {block.local_offset, block.extent}),
                    box_of(again, {block.global_offset, block.extent}));
      }
      expect_same(again, whole, tensor.name);
    }
  }
}

// The distributed optimizer keeps masters too; of an fp32 model they are the weights.
TEST(MegatronOptimizer, DistributedOptimizerMasters) {
  RankContext ctx;
  const MegatronCheckpoint checkpoint = open_megatron(kRoot + "llama_distopt/torch_dist");
  size_t masters = 0;
  for (const MegatronTensor& tensor : checkpoint.tensors) {
    if (tensor.name.starts_with("optimizer.")) continue;
    for (const char* state : {"master.", "exp_avg.", "exp_avg_sq."})
      ASSERT_TRUE(checkpoint.find(std::string("optimizer.") + state + tensor.name)) << tensor.name;
    const MegatronTensor& master = *checkpoint.find("optimizer.master." + tensor.name);
    const Tensor a = host_tensor(tensor.shape, DType::F32), b = host_tensor(tensor.shape, DType::F32);
    tensor.read(ctx, ShardSpec::whole(tensor.shape), a);
    master.read(ctx, ShardSpec::whole(tensor.shape), b);
    expect_same(a, b, tensor.name);
    ++masters;
  }
  EXPECT_EQ(masters, SafetensorsFile(kRoot + "llama_distopt/expected.safetensors").entries().size());
}

INSTANTIATE_TEST_SUITE_P(Golden, MegatronCheckpoints,
                         ::testing::Values("gpt_dense", "llama", "llama_distopt", "moe_top2"));

}  // namespace
}  // namespace megatron::testing
