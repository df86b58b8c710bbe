#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "fault/odd_disks.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/comm/run_ranks.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::read_text;
using testing::TempDir;

constexpr int ranks = 4;

// Tensor parallel over two ranks, replicated over two; every element is `value`.
std::vector<ShardedTensor> make_tensors(RankContext& ctx, int rank, double value) {
  const ShardSpec column = ShardSpec::split({8, 6}, 0, rank % 2, 2),
                  row = ShardSpec::split({6, 8}, 1, rank % 2, 2), norm = ShardSpec::whole({6});
  return {{"column", column, ctx.full(column.local_shape, DType::F32, value)},
          {"row", row, ctx.full(row.local_shape, DType::BF16, value)},
          {"norm", norm, ctx.full(norm.local_shape, DType::F32, value)}};
}

SaveRequest make_request(RankContext& ctx, int rank, const std::string& root, int64_t iteration) {
  SaveRequest request;
  request.root = root;
  request.state.iteration = iteration;
  request.tensors = make_tensors(ctx, rank, static_cast<double>(iteration));
  return request;
}

void expect_values(const std::string& path, double value) {
  RankContext ctx;
  const std::vector<ShardedTensor> tensors = {
      {"column", ShardSpec::whole({8, 6}), ctx.full({8, 6}, DType::F64, -1)},
      {"row", ShardSpec::whole({6, 8}), ctx.full({6, 8}, DType::F64, -1)},
      {"norm", ShardSpec::whole({6}), ctx.full({6}, DType::F64, -1)}};
  CheckpointReader(path).load(ctx, tensors);
  for (const ShardedTensor& tensor : tensors)
    for (int64_t i = 0; i < tensor.tensor.numel(); ++i) EXPECT_EQ(tensor.tensor.data<double>()[i], value);
}

TEST(SaveCheckpoint, RanksSaveTogether) {
  TempDir dir;
  std::mutex mutex;
  std::set<std::string> paths;
  run_ranks(ranks, [&](int rank, ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    SaveRequest request = make_request(ctx, rank, dir.path(), 5);
    if (rank == 0) request.assets = {{"tokenizer/tokenizer.json", "{}"}, {"config.json", "{\"a\": 1}"}};
    const std::string path = save_checkpoint(ctx, world, request);
    std::lock_guard lock(mutex);
    paths.insert(path);
  });
  EXPECT_EQ(paths, std::set<std::string>{dir / "iter_0000005"});
  EXPECT_TRUE(verify_checkpoint(dir / "iter_0000005").empty())
      << verify_checkpoint(dir / "iter_0000005").text();
  EXPECT_EQ(read_text(dir / "iter_0000005/tokenizer/tokenizer.json"), "{}");
  expect_values(dir.path(), 5);
  const CheckpointIndex index = read_index(dir / "iter_0000005");
  EXPECT_EQ(index.files.size(), 6u) << "all four ranks have a share";

  testing::write_text(dir / "iter_0000005/config.json", "{\"a\": 2}");
  EXPECT_EQ(verify_checkpoint(dir / "iter_0000005").count(), 1u) << "assets have checksums too";
}

// Whatever rank fails in whatever step, all ranks say so, nothing new is there and the old one is.
TEST(SaveCheckpoint, AFaultAnywhereFailsEverywhere) {
  for (const char* where : {"describe", "create", "write", "assets", "index", "publish"}) {
    for (int faulty : {0, 2}) {
      if (faulty != 0 && std::set<std::string>{"assets", "index", "publish"}.contains(where)) continue;
      TempDir dir;
      std::atomic<int> failed = 0;
      run_ranks(ranks, [&](int rank, ProcessGroup& world) {
        RankContext ctx(kCpu, 1, rank);
        save_checkpoint(ctx, world, make_request(ctx, rank, dir.path(), 1));
        SaveRequest request = make_request(ctx, rank, dir.path(), 2);
        if (rank == faulty) {
          request.on_step = [&](std::string_view step) { require(step != where, "disk: full at {}", step); };
        }
        const std::string message = error_of([&] { save_checkpoint(ctx, world, request); });
        EXPECT_EQ(message,
                  fmt::format("the checkpoint was not saved:\n  rank {}: disk: full at {}", faulty, where));
        failed += message != "no error";
      });
      EXPECT_EQ(failed, ranks);
      EXPECT_EQ(latest_checkpoint(dir.path())->iteration, 1);
      expect_values(dir.path(), 1);
      EXPECT_FALSE(fs::exists(dir / "iter_0000002"));
      EXPECT_FALSE(fs::exists(dir / "iter_0000002.partial")) << "after " << where;
    }
  }
}

TEST(SaveCheckpoint, ADirectoryThatCannotBeWritten) {
  TempDir dir;
  testing::write_text(dir / "file", "");
  const std::string message = error_of([&] {
    run_ranks(2, [&](int rank, ProcessGroup& world) {
      RankContext ctx(kCpu, 1, rank);
      save_checkpoint(ctx, world, make_request(ctx, rank, dir / "file/x", 1));
    });
  });
  EXPECT_NE(message.find("rank 0: cannot create " + dir / "file/x"), std::string::npos) << message;
}

TEST(SaveCheckpoint, RanksThatDisagreeAreRefused) {
  TempDir dir;
  const std::string message = error_of([&] {
    run_ranks(2, [&](int rank, ProcessGroup& world) {
      RankContext ctx(kCpu, 1, rank);
      SaveRequest request = make_request(ctx, rank, dir.path(), 1);
      if (rank == 1) request.tensors[2] = {"norm", ShardSpec::whole({7}), ctx.full({7}, DType::F32, 0)};
      save_checkpoint(ctx, world, request);
    });
  });
  EXPECT_NE(message.find("norm: rank 0 has it as fp32[6], rank 1 as fp32[7]"), std::string::npos) << message;
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(AsyncSaver, TrainingGoesOnMeanwhile) {
  TempDir dir;
  run_ranks(ranks, [&](int rank, ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    AsyncSaver saver;
    EXPECT_FALSE(saver.poll(world).has_value());
    for (int64_t iteration = 1; iteration <= 3; ++iteration) {
      SaveRequest request = make_request(ctx, rank, dir.path(), iteration);
      saver.start(ctx, world, request);
      EXPECT_TRUE(saver.busy());
      for (const ShardedTensor& tensor : request.tensors)  // the next step changes the weights
        ctx.kernels->fill(ctx.kernel_context(), {tensor.tensor, 1000});
      if (iteration == 1) continue;  // the next start finishes it
      std::optional<std::string> path;
      while (!(path = saver.poll(world))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(*path, dir / iteration_name(iteration));
      EXPECT_FALSE(saver.busy());
    }
  });
  for (int64_t iteration = 1; iteration <= 3; ++iteration) {
    expect_values(dir / iteration_name(iteration), static_cast<double>(iteration));
    EXPECT_TRUE(verify_checkpoint(dir / iteration_name(iteration)).empty());
  }
}

TEST(AsyncSaver, AFaultInTheBackgroundIsTold) {
  TempDir dir;
  run_ranks(2, [&](int rank, ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    save_checkpoint(ctx, world, make_request(ctx, rank, dir.path(), 1));
    AsyncSaver saver;
    SaveRequest request = make_request(ctx, rank, dir.path(), 2);
    if (rank == 1)  // its file cannot be made: something else has its name
      request.on_step = [&](std::string_view step) {
        if (step == "begin")
          fs::create_directories(dir / "iter_0000002.partial/rank_00001.safetensors.partial/x");
      };
    saver.start(ctx, world, request);
    const std::string message = error_of([&] { saver.finish(world); });
    EXPECT_NE(message.find("rank 1: cannot remove"), std::string::npos) << message;
    EXPECT_FALSE(saver.busy());
  });
  EXPECT_EQ(latest_checkpoint(dir.path())->iteration, 1);
  expect_values(dir.path(), 1);
}

// A rank whose system gives it no thread: all ranks hear of it, and the run can go on.
TEST(AsyncSaver, ARankWithoutAThreadIsTold) {
  TempDir dir;
  std::atomic<bool> limited = true;
  run_ranks(2, [&](int rank, ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    AsyncSaver saver;
    if (rank == 1) limited = testing::limit_threads(0);
    world.barrier();
    if (!limited) return;
    saver.start(ctx, world, make_request(ctx, rank, dir.path(), 1));
    EXPECT_TRUE(saver.busy());
    const std::string message = error_of([&] { saver.finish(world); });
    EXPECT_NE(message.find("rank 1: Resource temporarily unavailable"), std::string::npos) << message;
    EXPECT_FALSE(saver.busy());
  });
  if (!limited) GTEST_SKIP() << "this kernel does not let a process limit its threads";
  EXPECT_TRUE(list_checkpoints(dir.path()).empty());
}

TEST(AsyncSaver, GivenUpHalfWayLeavesTheOldOne) {
  TempDir dir;
  run_ranks(2, [&](int rank, ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    save_checkpoint(ctx, world, make_request(ctx, rank, dir.path(), 1));
    AsyncSaver saver;
    saver.start(ctx, world, make_request(ctx, rank, dir.path(), 2));
  });
  expect_values(dir.path(), 1);
}

}  // namespace
}  // namespace megatron
