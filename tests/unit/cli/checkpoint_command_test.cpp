#include "megatron/cli/commands.h"

#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/save.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

using testing::TempDir;

Outcome run(std::vector<std::string> args) {
  args.insert(args.begin(), "checkpoint");
  return run_command(std::move(args));
}

// Two ranks, each with half of "w", both with "b".
void save(const std::string& root) {
  RankContext ctx;
  std::vector<std::vector<ShardedTensor>> tensors;
  std::vector<std::vector<ShardDescription>> described;
  for (int rank = 0; rank < 2; ++rank) {
    const ShardSpec half = ShardSpec::split({8, 4}, 0, rank, 2), whole = ShardSpec::whole({4});
    tensors.push_back({{"w", half, ctx.full(half.local_shape, DType::BF16, rank)},
                       {"b", whole, ctx.full({4}, DType::F32, 1)}});
    described.push_back(describe(tensors.back()));
  }
  std::vector<StoredTensor> plan = plan_save(described);
  const std::string directory = begin_save(root, 7);
  std::vector<std::optional<WrittenFile>> files;
  for (int rank = 0; rank < 2; ++rank)
    files.push_back(write_pieces(directory, rank, own_pieces(rank, tensors[rank], plan)));
  TrainingState state;
  state.iteration = 7;
  state.consumed_samples = 56;
  state.seed = 1234;
  write_index(directory, make_index(state, plan, files));
  publish_save(root, 7);
}

TEST(CheckpointCommand, Inspect) {
  TempDir dir;
  save(dir.path());
  for (const std::string& path : {dir.path(), dir / "iter_0000007"}) {
    const Outcome outcome = run({"inspect", path});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_NE(outcome.out.find("iteration         7\nconsumed samples  56\nseed              1234\n"),
              std::string::npos)
        << outcome.out;
    EXPECT_NE(outcome.out.find("tensors           2, 36 elements\n"
                               "  b  fp32      [4]               1 piece in 1 file\n"
                               "  w  bf16      [8, 4]            2 pieces in 2 files\n"),
              std::string::npos)
        << outcome.out;
  }
  const Json document = Json::parse(run({"inspect", dir.path(), "--json"}).out);
  EXPECT_EQ(document.at("elements").as_int(), 36);
  EXPECT_EQ(document.at("index").at("tensors")[1].at("pieces").size(), 2u);
}

TEST(CheckpointCommand, Verify) {
  TempDir dir;
  save(dir.path());
  Outcome outcome = run({"verify", dir.path()});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.out.find("sound: 2 tensors in 2 files"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("reading rank_00001.safetensors"), std::string::npos) << outcome.err;
  EXPECT_EQ(Json::parse(run({"verify", dir.path(), "--json"}).out).at("sound").as_bool(), true);

  const std::string file = dir / "iter_0000007/rank_00001.safetensors";
  std::string text = testing::read_text(file);
  text.back() = static_cast<char>(text.back() ^ 1);
  testing::write_text(file, text);
  outcome = run({"verify", dir.path()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("rank_00001.safetensors: "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("its checksum is"), std::string::npos) << outcome.err;
  outcome = run({"verify", dir.path(), "--json", "-q"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(Json::parse(outcome.out).at("problems").size(), 1u);
}

TEST(CheckpointCommand, Reshard) {
  TempDir dir, other;
  save(dir.path());
  EXPECT_EQ(run({"reshard", dir.path(), "--out", other / "one"}).out, other / "one/iter_0000007" + "\n");
  EXPECT_NE(run({"inspect", other / "one"}).out.find("  w  bf16      [8, 4]            1 piece in 1 file\n"),
            std::string::npos);
  EXPECT_EQ(run({"verify", other / "one"}).code, 0);
  EXPECT_EQ(run({"reshard", dir.path(), "--out", dir.path()}).code, 1);
  EXPECT_EQ(run({"reshard", dir.path()}).code, 2);
  EXPECT_EQ(run({"reshard", dir.path(), "--out", other / "none", "--files", "0"}).code, 2);
}

TEST(CheckpointCommand, WrongUse) {
  TempDir dir;
  EXPECT_EQ(run({}).code, 2);
  EXPECT_EQ(run({"inspect"}).code, 2);
  EXPECT_EQ(run({"inspekt", "x"}).err,
            "megatron: checkpoint: there is no 'inspekt': did you mean 'inspect'?\n");
  EXPECT_EQ(run({"verify", "x", "--jsn"}).err,
            "megatron: checkpoint: --jsn: there is no such flag; did you mean '--json'?\n");
  EXPECT_EQ(run({"verify", dir / "absent"}).code, 1);
  EXPECT_NE(run({"--help"}).out.find("usage: megatron checkpoint"), std::string::npos);
}

}  // namespace
}  // namespace megatron
