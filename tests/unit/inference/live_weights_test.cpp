#include <gtest/gtest.h>

#include "megatron/parallel/refit.h"
#include "megatron/training/step/rank_trainer.h"
#include "unit/inference/small_models.h"

namespace megatron {
namespace {

using testing::Answer;

Config trained_config(const testing::SmallModel& kind, int tp, int pp, int dp) {
  Config config = testing::small_config(kind, tp, pp);
  config.model.hidden_dropout = config.model.attention_dropout = 0;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 2 * dp;
  return config;
}

// This replica's rows of a step, [2, length + 1].
std::vector<int64_t> rows_of_step(int64_t step, int replica) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 2 * 97; ++i) tokens.push_back((i * i + 13 * step + 29 * replica) % 50);
  return tokens;
}

std::vector<int64_t> text_of(Engine& engine, bool first, const std::vector<int64_t>& prompt) {
  Answer answer;
  if (first) engine.submit({.prompt = prompt, .max_tokens = 12}, answer.listener());
  while (engine.step()) {
  }
  return answer.ids;
}

const std::vector<int64_t> kPrompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};

// One engine stays over the weights that a trainer changes: it writes what a new one writes, and only once
// what it kept of the old weights is forgotten.
TEST(LiveWeights, AnEngineFollowsItsTrainer) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 2}}) {
    const Config config = trained_config(testing::kDense, tp, pp, 1);
    run_ranks(tp * pp, [&](int rank, const ProcessGroup& world) {
      RankContext ctx(kCpu, 1, rank);
      const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, tp * pp));
      RankTrainer trainer(ctx, config, parallel, DType::F32);
      Engine engine(ctx, world, trainer.model(), {.block_size = 4});
      const bool first = rank == 0;
      std::vector<int64_t> before = text_of(engine, first, kPrompt);
      for (int64_t step = 0; step < 3; ++step) {
        trainer.step(ctx, rows_of_step(step, 0), 0.02);
        trainer.finish_parameters();
        engine.weights_changed();
        const std::vector<int64_t> now = text_of(engine, first, kPrompt);
        Engine fresh(ctx, world, trainer.model(), {.block_size = 4});
        EXPECT_EQ(now, text_of(fresh, first, kPrompt)) << "step " << step;
        if (first) {
          EXPECT_NE(now, before) << "the step changed nothing";
        }
        before = now;
      }
    });
  }
}

// Requests under way go on with the new weights, from their first token on.
TEST(LiveWeights, RequestsUnderWayAreReadAgain) {
  const Config config = trained_config(testing::kDense, 1, 1, 1);
  run_ranks(1, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1);
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, 1));
    RankTrainer trainer(ctx, config, parallel, DType::F32);
    Engine engine(ctx, world, trainer.model(), {.block_size = 4});
    Answer answer, rest;
    engine.submit({.prompt = kPrompt, .max_tokens = 12}, answer.listener());
    for (int step = 0; step < 5; ++step) engine.step();
    const std::vector<int64_t> begun = answer.ids;
    ASSERT_EQ(begun.size(), 5U);
    trainer.step(ctx, rows_of_step(0, 0), 0.02);
    trainer.finish_parameters();
    engine.weights_changed();
    while (engine.step()) {
    }
    std::vector<int64_t> text = kPrompt;
    text.insert(text.end(), begun.begin(), begun.end());
    Engine fresh(ctx, world, trainer.model(), {.block_size = 4});
    fresh.submit({.prompt = text, .max_tokens = 7}, rest.listener());
    while (fresh.step()) {
    }
    EXPECT_EQ(std::vector<int64_t>(answer.ids.begin() + 5, answer.ids.end()), rest.ids);
    EXPECT_EQ(engine.stats().used_blocks, 0);
  });
}

// A trainer's weights under one layout become those of an engine under another, step after step: the same
// values as in the trainer's own order.
void refit(const testing::SmallModel& kind, int tp, int pp, int dp, int to_tp, int to_pp) {
  const int ranks = tp * pp * dp;
  const Config config = trained_config(kind, tp, pp, dp), served = trained_config(kind, to_tp, to_pp, 1);
  std::vector<std::vector<float>> trained(3), answered(3);
  std::vector<std::vector<int64_t>> texts(3);
  run_ranks(ranks, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, ranks));
    RankTrainer trainer(ctx, config, parallel, DType::F32);
    const ProcessGroup own = world.split_by([&](int r) { return r < to_tp * to_pp ? 0 : -1; }, "inference");
    std::unique_ptr<Model> model;
    std::unique_ptr<ParallelContext> layout;
    std::vector<Parameter*> targets;
    if (own) {
      layout = std::make_unique<ParallelContext>(
          ParallelContext::from_sizes(own, parallel_sizes(served, to_tp * to_pp)));
      model = std::make_unique<Model>(served, *layout, DType::F32);
      targets = model->parameters();
      for (Parameter* parameter : targets) {
        parameter->allocate(ctx, DType::F32);
        ctx.kernels->fill(ctx.kernel_context(), {parameter->value, 0.25});
      }
    }
    Refit refit(world, trainer.parameters(), targets);
    std::unique_ptr<Engine> engine;
    if (own) engine = std::make_unique<Engine>(ctx, own, *model, EngineOptions{.block_size = 4});
    for (size_t step = 0; step < 3; ++step) {
      trainer.step(ctx, rows_of_step(static_cast<int64_t>(step), parallel.rank(Axis::dp)), 0.02);
      trainer.finish_parameters();
      refit.run(ctx);
      const Tensor logits = trainer.model().logits(ctx, {.tokens = kPrompt});
      if (rank == 0) trained[step] = ctx.to_vector<float>(logits);
      if (!own) continue;
      engine->weights_changed();
      const Tensor same = model->logits(ctx, {.tokens = kPrompt});
      const std::vector<int64_t> text = text_of(*engine, own.rank() == 0, kPrompt);
      if (own.rank() != 0) continue;
      answered[step] = ctx.to_vector<float>(same);
      texts[step] = text;
    }
  });
  for (size_t step = 0; step < 3; ++step) {
    ASSERT_EQ(trained[step].size(), answered[step].size());
    for (size_t i = 0; i < trained[step].size(); ++i)
      ASSERT_NEAR(trained[step][i], answered[step][i], 1e-4 * (1 + std::abs(trained[step][i])))
          << kind.name << " step " << step << " logit " << i;
    EXPECT_EQ(texts[step].size(), 12U);
    if (step > 0) {
      EXPECT_NE(trained[step], trained[step - 1]);
    }
  }
}

TEST(LiveWeights, RefitToAnotherLayout) {
  refit(testing::kDense, 2, 2, 1, 1, 1);
  refit(testing::kDense, 1, 2, 2, 4, 1);
  refit(testing::kExperts, 2, 1, 1, 1, 2);
  refit(testing::kHybrid, 2, 1, 1, 1, 1);
}

TEST(LiveWeights, RefitNamesWhatNobodyHas) {
  run_ranks(1, [&](int, const ProcessGroup& world) {
    Parameter from("a", ShardSpec::split({8, 4}, 0, 0, 2), Initializer::constant(1));
    Parameter to("a", ShardSpec::whole({8, 4}), Initializer::constant(0));
    RankContext ctx(kCpu, 1);
    from.allocate(ctx, DType::F32);
    to.allocate(ctx, DType::F32);
    Parameter* sources[] = {&from};
    Parameter* targets[] = {&to};
    EXPECT_THROW(Refit(world, sources, targets), ConfigError);
  });
}

}  // namespace
}  // namespace megatron
