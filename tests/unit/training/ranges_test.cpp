#include <gtest/gtest.h>

#include <map>

#include "megatron/comm/run_ranks.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/log/profiling.h"
#include "megatron/training/step/rank_trainer.h"

// The ranges that a step names, as a profiler would see them.
namespace megatron {
namespace {

class Listener final : public Tracer {
 public:
  void op(const char*, Phase, const Cost&) override { ++ops; }
  void begin(const char* name) override {
    open.emplace_back(name);
    std::string path;
    for (const std::string& part : open) path += "/" + part;
    ++times[path];
  }
  void end() override {
    ASSERT_FALSE(open.empty());
    open.pop_back();
  }

  int ops = 0;
  std::vector<std::string> open;
  std::map<std::string, int> times;
};

Config model() {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 48, .vocab = 64, .length = 8});
  config.train.micro_batch_size = 1;
  return config;
}

TEST(Ranges, NameWhatAStepDoes) {
  std::vector<Listener> listeners(2);
  const Config config = model();
  run_ranks(2, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    world.attach(ctx);
    ParallelContext parallel = ParallelContext::from_sizes(world, {.world = 2});
    RankTrainer trainer(ctx, config, parallel, DType::F32);
    std::vector<int64_t> tokens(3 * 9, 5);
    ctx.tracer = &listeners[static_cast<size_t>(rank)];
    trainer.step(ctx, tokens, 1e-3);
    trainer.evaluate(ctx, tokens);
  });
  for (Listener& listener : listeners) {
    EXPECT_TRUE(listener.open.empty());
    EXPECT_GT(listener.ops, 0);
    auto times = [&](const char* path) { return listener.times[path]; };
    EXPECT_EQ(times("/step"), 1);
    EXPECT_EQ(times("/step/gradients/forward"), 3);
    EXPECT_EQ(times("/step/gradients/backward"), 3);
    EXPECT_EQ(times("/step/update/optimizer"), 1);
    EXPECT_EQ(times("/step/gradients/gradient norm"), 1);
    EXPECT_EQ(times("/step/gradients/forward/embedding"), 3);
    EXPECT_EQ(times("/step/gradients/forward/mixer"), 6);
    EXPECT_EQ(times("/step/gradients/forward/mixer/core_attention"), 6);
    EXPECT_EQ(times("/step/gradients/forward/mlp/decoder.layers.1.mlp.linear_fc1.weight"), 3);
    EXPECT_EQ(times("/step/gradients/forward/output_layer"), 3);
    EXPECT_EQ(times("/step/gradients/backward/linear"), 3 * 2 * 3);
    EXPECT_EQ(times("/step/gradients/backward/activated_linear"), 3 * 2);
    EXPECT_EQ(times("/step/gradients/finish gradients/all_reduce dp-cp"), 1);
    EXPECT_EQ(times("/evaluate/forward"), 3);
  }
}

// On the steps and ranks that were chosen, and nowhere else.
TEST(Ranges, OfProfiledSteps) {
  ProfilingConfig config;
  config.profile = true;
  config.profile_step_start = 2;
  config.profile_step_end = 4;
  config.profile_ranks = {1};
  for (int rank : {0, 1}) {
    RankContext ctx(kCpu, 1, rank);
    Profiling profiling(ctx, config);
    for (int64_t step = 0; step < 6; ++step) {
      profiling.before_step(step);
      EXPECT_EQ(ctx.tracer != nullptr, rank == 1 && (step == 2 || step == 3)) << rank << " " << step;
    }
  }
  config.profile = false;
  config.nvtx_ranges = true;
  RankContext ctx;
  {
    Profiling profiling(ctx, config);
    EXPECT_NE(ctx.tracer, nullptr);
  }
  EXPECT_EQ(ctx.tracer, nullptr);
}

}  // namespace
}  // namespace megatron
