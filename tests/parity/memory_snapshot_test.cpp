// The copies of a step boundary in ranks' memory give every bit back, in the form that it was kept in where
// the layout is the same, else through its values.
#include <gtest/gtest.h>

#include <mutex>

#include "megatron/checkpoint/save.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/training/run/memory_snapshot.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "support/to_doubles.h"

namespace megatron::testing {
namespace {

struct Kept {
  const char* states;  // number format of the moments
  bool sharded;        // the optimizer over the two replicas
};

Config config_of(const Kept& kept) {
  Config config = apply(small_gpt(), {.name = "dp2", .dp = 2});
  config.ddp.use_distributed_optimizer = kept.sharded;
  config.ddp.bucket_size = 3000;
  config.optimizer.use_precision_aware_optimizer = true;  // masters are split, or in fp16
  config.optimizer.exp_avg_dtype = config.optimizer.exp_avg_sq_dtype = kept.states;
  if (kept.states == std::string("fp16")) config.optimizer.main_params_dtype = "fp16";
  return config;
}

// All that a checkpoint would hold, as its fp32 values, and as it lies in memory.
struct State {
  WholeTensors values;
  std::map<std::string, std::string> bytes;
};

void append_bytes(std::string& text, const Tensor& tensor) {
  if (tensor) text.append(static_cast<const char*>(tensor.raw()), tensor.bytes());
}

void collect(RankContext& ctx, RankTrainer& trainer, std::mutex& mutex, State& state) {
  int piece_number = 0;
  for (const ShardedTensor& piece : checkpoint_tensors(trainer)) {
    const Tensor held = host_values({piece.name, piece.tensor, piece.packed});
    const auto values = to_doubles(ctx, held);
    Parameter like(piece.name, piece.shard, Initializer::constant(0));
    std::lock_guard lock(mutex);
    put_together(state.values, like, values);
    std::string& bytes = state.bytes[fmt::format("{} {} {}", ctx.rank, piece_number++, piece.name)];
    append_bytes(bytes, piece.tensor);
    if (!piece.packed) continue;
    for (const Tensor& part : piece.packed->parts) append_bytes(bytes, part);
    append_bytes(bytes, piece.packed->scale);
  }
}

TEST(MemorySnapshot, GivesEveryBitBack) {
  const Kept kinds[] = {{"fp32", false}, {"fp32", true}, {"fp16", false}, {"fp8", true}};
  for (const Kept& kept : kinds)
    for (const bool same_layout : {true, false}) {
      // A scale belongs to a slice, so that under another layout values with one are rounded anew.
      if (!same_layout && kept.states != std::string("fp32")) continue;
      SCOPED_TRACE(fmt::format("{} {} {}", kept.states, kept.sharded, same_layout));
      const Config config = config_of(kept), other = config_of({kept.states, !kept.sharded});
      const auto batches = batches_for(config, 2);
      State before, after;
      std::mutex mutex;
      int as_kept = 0, by_values = 0;
      run_ranks(2, [&](int rank, const ProcessGroup& world) {
        RankContext ctx(kCpu, 1, rank);
        const ParallelContext parallel =
            ParallelContext::from_sizes(world, sizes_of({.name = "dp2", .dp = 2}));
        RankTrainer trainer(ctx, config, parallel, DType::BF16);
        const auto step = [&](const std::vector<int64_t>& batch) {
          const std::span<const int64_t> all = batch;
          trainer.step(ctx, all.subspan(all.size() / 2 * static_cast<size_t>(rank), all.size() / 2), 1e-2);
        };
        step(batches[0]);
        MemorySnapshot memory;
        memory.keep(ctx, checkpoint_tensors(trainer), {.iteration = 1}, trainer.optimizer().change_groups());
        collect(ctx, trainer, mutex, before);
        step(batches[1]);  // what was kept is a copy
        std::optional<RankTrainer> next;
        if (!same_layout) next.emplace(ctx, other, parallel, DType::BF16);
        RankTrainer& restored = same_layout ? trainer : *next;
        std::optional<TensorSource> source = memory.restore(world, describe(checkpoint_tensors(restored)));
        ASSERT_TRUE(source);
        source->read_packed = [&, read = source->read_packed](RankContext& own, const ShardedTensor& part) {
          const bool found = read(own, part);
          std::lock_guard lock(mutex);
          ++(found ? as_kept : by_values);
          return found;
        };
        load_run(ctx, *source, restored);
        collect(ctx, restored, mutex, after);
      });
      const TensorDifference difference = largest_difference(before.values, after.values);
      EXPECT_EQ(difference.worst, 0) << difference.where;
      EXPECT_FALSE(before.values.empty());
      if (same_layout) {
        EXPECT_EQ(before.bytes, after.bytes);
        EXPECT_EQ(by_values, 0);
        EXPECT_GT(as_kept, 10);
      } else {
        EXPECT_GT(by_values, 10);
      }
    }
}

}  // namespace
}  // namespace megatron::testing
