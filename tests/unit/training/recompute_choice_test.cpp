#include "megatron/training/plan/recompute_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "megatron/base/error.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/step/rank_trainer.h"

// Modules that are recomputed are chosen by what they cost, until a step fits.
namespace megatron {
namespace {

Config model() {
  Config config;
  config.model = llama_style(
      {.layers = 6, .hidden = 64, .heads = 4, .groups = 2, .ffn = 160, .vocab = 256, .length = 128});
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 4;
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"auto"};
  return config;
}

RecomputeChoice choose(Config& config, double limit, const ParallelSizes& sizes = {}) {
  return choose_recompute(config, sizes, DType::F32, limit, speed_of(DeviceType::Cpu, DType::F32));
}

double everything_kept(const ParallelSizes& sizes = {}) {
  Config config = model();
  return choose(config, 1e15, sizes).kept_bytes;
}

struct Trained {
  std::vector<double> losses;
  double peak = 0;
};

Trained train(const Config& config) {
  RankContext ctx;
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, DType::F32);
  std::vector<int64_t> tokens(4 * 129);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i * i % 251);
  Trained result;
  for (int step = 0; step < 3; ++step) result.losses.push_back(trainer.step(ctx, tokens, 1e-2).loss);
  result.peak = static_cast<double>(ctx.allocator->statistics().total.peak);
  return result;
}

TEST(RecomputeChoice, TakesTheCheapestFirstAndNoMoreThanIsNeeded) {
  Config config = model();
  const RecomputeChoice all = choose(config, 1e15);
  EXPECT_EQ(all.chosen(), "nothing");
  EXPECT_EQ(config.execution.recompute_granularity, RecomputeGranularity::none);
  ASSERT_EQ(all.modules.size(), 4u);
  for (size_t i = 1; i < all.modules.size(); ++i)
    EXPECT_LE(all.modules[i - 1].seconds / all.modules[i - 1].saved_bytes,
              all.modules[i].seconds / all.modules[i].saved_bytes);
  // A byte less than everything needs: the first of the list, in one layer.
  const auto last = [](const Config& c) { return c.execution.recompute_module_layers.back(); };
  const std::string &first = all.modules[0].name, &second = all.modules[1].name;
  config = model();
  EXPECT_EQ(choose(config, all.kept_bytes - 1).chosen(), first + " in 1 of 6 layers");
  EXPECT_EQ(last(config), 1);
  // All that it saves: in all layers.
  config = model();
  const RecomputeChoice one = choose(config, all.kept_bytes - all.modules[0].saved_bytes);
  EXPECT_EQ(one.chosen(), first);
  EXPECT_EQ(config.execution.recompute_modules, std::vector<std::string>{first});
  EXPECT_TRUE(config.execution.recompute_module_layers.empty());
  // A byte less: the second, too; and more layers of it for less memory.
  config = model();
  EXPECT_EQ(choose(config, one.bytes - 1).chosen(), first + ", " + second + " in 1 of 6 layers");
  config = model();
  choose(config, one.bytes - 0.5 * all.modules[1].saved_bytes);
  EXPECT_GE(last(config), 3);
  EXPECT_LE(last(config), 4);
}

TEST(RecomputeChoice, FitsAsPredictedAndChangesNoLoss) {
  const double kept = everything_kept();
  Config config = model();
  config.execution.recompute_granularity = RecomputeGranularity::none;
  config.execution.recompute_modules = {};
  const Trained plain = train(config);
  EXPECT_EQ(plain.peak, kept);
  std::set<std::string> choices;
  for (double part : {0.98, 0.9, 0.8, 0.75}) {
    SCOPED_TRACE(part);
    Config limited = model();
    const RecomputeChoice choice = choose(limited, part * kept);
    EXPECT_LE(choice.bytes, part * kept);
    EXPECT_GT(choice.seconds, choice.kept_seconds);
    choices.insert(choice.chosen());
    const Trained trained = train(limited);
    EXPECT_EQ(trained.peak, choice.bytes);
    EXPECT_EQ(trained.losses, plain.losses);
  }
  EXPECT_GE(choices.size(), 3u);
}

TEST(RecomputeChoice, WhatNothingHelpsIsRefusedWithAdvice) {
  Config config = model();
  Config full = model();
  full.execution.recompute_granularity = RecomputeGranularity::full;
  full.execution.recompute_method = RecomputeMethod::uniform;
  full.execution.recompute_num_layers = 1;
  full.execution.recompute_modules = {};
  const double least = plan_run(full, {}, DType::F32).largest().bytes();
  const auto message = [&](double limit) {
    try {
      choose(config, limit);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message(least).find("use --recompute-granularity full, which needs"), std::string::npos)
      << message(least);
  EXPECT_NE(message(0.5 * least).find("--micro-batch-size"), std::string::npos) << message(0.5 * least);
  // Nothing was changed.
  EXPECT_TRUE(chooses_recompute(config));
}

// The first stage of a pipeline keeps the most.
TEST(RecomputeChoice, LooksAtTheLargestRank) {
  const ParallelSizes sizes{.world = 2, .pp = 2};
  Config config = model();
  config.parallel.pipeline_model_parallel_size = 2;
  config.train.micro_batch_size = 1;
  const RunPlan plan = [&] {
    Config plain = config;
    plain.execution.recompute_granularity = RecomputeGranularity::none;
    plain.execution.recompute_modules = {};
    return plan_run(plain, sizes, DType::F32);
  }();
  const double limit = 0.9 * plan.largest().bytes();
  const RecomputeChoice choice = choose(config, limit, sizes);
  EXPECT_EQ(choice.kept_bytes, plan.largest().bytes());
  EXPECT_LE(plan_run(config, sizes, DType::F32).largest().bytes(), limit);
}

// Under overlap of GEMMs and messages the activation is made again, too.
TEST(RecomputeChoice, ActivationUnderOverlap) {
  Config config = model();
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.sequence_parallel = config.parallel.tp_comm_overlap = true;
  const ParallelSizes sizes{.world = 2, .tp = 2};
  for (const RecomputeChoice::Module& module : choose(config, 1e15, sizes).modules)
    if (module.name == "mlp_act") {
      // Of each layer and of one micro-batch, [tokens, ffn / 2].
      EXPECT_NEAR(module.saved_bytes, 6.0 * 2 * 128 * 80 * 4, 2.0 * 128 * 80 * 4);
    }
}

// The activation of fp8 layers is kept in one byte as it is: only layers that stay in bf16 can offer it.
TEST(RecomputeChoice, ActivationsOfLayersInBf16) {
  Config config = model();
  PrecisionConfig& precision = config.precision;
  const auto offered = [&] {
    Config tried = config;
    const auto modules =
        choose_recompute(tried, {}, DType::BF16, 1e15, speed_of(DeviceType::Cpu, DType::BF16)).modules;
    return std::any_of(modules.begin(), modules.end(), [](auto& m) { return m.name == "mlp_act"; });
  };
  EXPECT_TRUE(offered());
  precision.fp8 = Fp8Format::hybrid;
  precision.fp8_recipe = Fp8Recipe::tensorwise;
  EXPECT_TRUE(precision.every_layer_in_fp8());
  EXPECT_FALSE(offered());
  precision.first_last_layers_bf16 = true;
  EXPECT_FALSE(precision.every_layer_in_fp8());
  EXPECT_TRUE(offered());
  precision.num_layers_at_start_in_bf16 = 0;
  EXPECT_EQ(precision.bf16_at_start(), 0);
  EXPECT_EQ(precision.bf16_at_end(), 1);
  EXPECT_TRUE(offered());
  precision.num_layers_at_end_in_bf16 = 0;
  EXPECT_FALSE(offered());
}

TEST(RecomputeChoice, MustBeMadeBeforeATrainer) {
  RankContext ctx;
  ParallelContext alone;
  const Config config = model();
  EXPECT_THROW(RankTrainer(ctx, config, alone, DType::F32), ConfigError);
}

}  // namespace
}  // namespace megatron
