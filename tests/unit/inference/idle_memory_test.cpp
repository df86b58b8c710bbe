#include "megatron/inference/idle_memory.h"

#include <gtest/gtest.h>

#include <thread>

#include "unit/inference/small_models.h"

namespace megatron {
namespace {

size_t idle_bytes(const RankContext& ctx) {
  const MemoryStatistics statistics = ctx.allocator->statistics();
  return statistics.reserved - statistics.total.current;
}

void use(RankContext& ctx, int64_t bytes) { ctx.empty({bytes}, DType::U8); }

TEST(IdleMemory, BlocksOfAllSizesDoNotGather) {
  RankContext ctx;
  const Tensor kept = ctx.empty({1 << 20}, DType::U8);
  IdleMemory memory(ctx, 1 << 20);
  size_t most = 0;
  for (int64_t bytes = 1000; bytes < 10000000; bytes += bytes / 20) {
    for (int i = 0; i < 64; ++i) {
      use(ctx, bytes);
      most = std::max(most, idle_bytes(ctx));
      memory.look(true);
    }
  }
  EXPECT_GT(most, size_t{9000000});
  EXPECT_LT(most, size_t{25000000}) << "much more than the largest step's";
}

TEST(IdleMemory, StepsThatRepeatKeepTheirBlocks) {
  RankContext ctx;
  IdleMemory memory(ctx, 1 << 20);
  for (int i = 0; i < 300; ++i) {
    use(ctx, 500000);
    use(ctx, 3000);
    memory.look(true);
    if (i % 10 == 0) memory.look(false);  // once is no rest
  }
  EXPECT_EQ(ctx.allocator->statistics().device_allocations, 2U);
  // Where a step has more than may lie idle, its blocks stay for some steps all the same.
  for (int i = 0; i < 640; ++i) {
    use(ctx, 5000000);
    memory.look(true);
  }
  EXPECT_LE(ctx.allocator->statistics().device_allocations, 2U + 11U);
}

TEST(IdleMemory, AllGoesWhereNothingIsDone) {
  RankContext ctx;
  const Tensor kept = ctx.full({1000}, DType::F32, 3);
  IdleMemory memory(ctx, 1 << 20);
  use(ctx, 10000);
  memory.look(true);
  memory.look(false);
  EXPECT_GT(idle_bytes(ctx), 0U);
  memory.look(false);
  EXPECT_EQ(idle_bytes(ctx), 0U);
  EXPECT_EQ(ctx.to_vector<float>(kept), std::vector<float>(1000, 3));
}

// The same of an engine that waits for requests.
TEST(IdleMemory, EnginesRest) {
  const Config config = testing::small_config(testing::kDense);
  testing::with_engine(config, DType::F32, {}, [&](Engine& engine, RankContext& ctx, Model&) {
    testing::Answer answer;
    engine.submit({.prompt = {1, 2, 3}, .max_tokens = 5}, answer.listener());
    bool rested = false;
    std::thread watch([&] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (!rested && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        rested = engine.stats().generated_tokens == 5 && idle_bytes(ctx) == 0;
      }
      engine.stop();
    });
    engine.run();
    watch.join();
    EXPECT_TRUE(rested);
    EXPECT_EQ(answer.ids.size(), 5U);
  });
}

}  // namespace
}  // namespace megatron
