#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron/models/decoder_shape.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/training/step/rank_trainer.h"

// Micro-batches as values: weights of labels, updates that are skipped, objectives of one's own.
namespace megatron {
namespace {

Config small(bool experts = false) {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = 64, .length = 8});
  config.train.micro_batch_size = 2;
  if (experts) {
    config.model.num_moe_experts = 4;
    config.model.moe_router_topk = 2;
    config.model.moe_router_score_function = RouterScore::sigmoid;
    config.model.moe_router_enable_expert_bias = true;
  }
  return config;
}

std::vector<Batch> some_batches(int count, uint64_t seed) {
  std::vector<int64_t> tokens(static_cast<size_t>(count) * 2 * 9);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int64_t>(Philox::at({seed, 0}, i).word[0] % 64);
  return batches_of_tokens(tokens, 2, 8);
}

struct Trainer {
  RankContext ctx;
  Config config;
  ParallelContext alone;
  RankTrainer trainer;

  explicit Trainer(Config given, const TrainerOptions& options = {})
      : config(std::move(given)), trainer(ctx, config, alone, DType::F64, options) {}

  // Everything that an update may change.
  std::vector<double> state() {
    std::vector<double> all;
    const auto add = [&](const Tensor& tensor) {
      const auto values = ctx.to_vector<double>(tensor);
      all.insert(all.end(), values.begin(), values.end());
    };
    for (Parameter* parameter : trainer.parameters()) add(parameter->value);
    for (const OptimizerTensor& entry : trainer.optimizer().state()) add(entry.tensor);
    all.push_back(static_cast<double>(trainer.steps_taken()));
    return all;
  }
};

TEST(BatchStep, WeightsOfOneAreNone) {
  Trainer plain(small()), weighted(small());
  std::vector<Batch> batches = some_batches(2, 1), ones = batches;
  for (Batch& batch : ones) batch.weights.assign(batch.labels.size(), 1.f);
  const StepReport a = plain.trainer.step(plain.ctx, batches, 1e-2),
                   b = weighted.trainer.step(weighted.ctx, ones, 1e-2);
  EXPECT_NEAR(a.loss, b.loss, 1e-14);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-13);
}

// A label of weight 0 is one that is ignored, and all weights together only count by their ratios.
TEST(BatchStep, WeightsCountByTheirShare) {
  for (bool per_token : {false, true}) {
    Config config = small();
    config.model.calculate_per_token_loss = per_token;
    Trainer ignored(config), weighted(config);
    std::vector<Batch> batches = some_batches(2, 2), other = batches;
    for (size_t i = 0; i < batches.size(); ++i) {
      other[i].weights.assign(other[i].labels.size(), 0.5f);
      for (size_t label : {1, 4, 11}) {
        batches[i].labels[label] = kIgnoredLabel;
        other[i].weights[label] = 0;
      }
    }
    const StepReport a = ignored.trainer.step(ignored.ctx, batches, 1e-2),
                     b = weighted.trainer.step(weighted.ctx, other, 1e-2);
    EXPECT_NEAR(a.loss, b.loss, 1e-13);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-12);
    EXPECT_NEAR(ignored.trainer.evaluate(ignored.ctx, batches),
                weighted.trainer.evaluate(weighted.ctx, other), 1e-13);
  }
}

// An update of gradients that are not finite changes nothing, and training goes on as if it had not been.
TEST(BatchStep, SkipsWhatIsNotFinite) {
  for (OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::sgd}) {
    Config config = small(true);
    config.optimizer.optimizer = kind;
    Trainer disturbed(config), other(config);
    std::vector<Batch> bad = some_batches(2, 7);
    bad[1].weights.assign(bad[1].labels.size(), std::numeric_limits<float>::infinity());
    for (uint64_t step = 0; step < 3; ++step) {
      if (step == 1) {
        const std::vector<double> before = disturbed.state();
        const StepReport report = disturbed.trainer.step(disturbed.ctx, bad, 1e-2);
        EXPECT_EQ(report.update, Update::not_finite);
        EXPECT_FALSE(std::isfinite(report.loss));
        EXPECT_EQ(disturbed.state(), before);
      }
      const StepReport a = disturbed.trainer.step(disturbed.ctx, some_batches(2, step), 1e-2),
                       b = other.trainer.step(other.ctx, some_batches(2, step), 1e-2);
      EXPECT_EQ(a.update, Update::taken);
      EXPECT_EQ(a.loss, b.loss);
    }
    EXPECT_EQ(disturbed.state(), other.state());
  }
}

// Gradients may be made again for the same iteration: dropout draws the same numbers.
TEST(BatchStep, GradientsCanBeMadeAgain) {
  Config config = small(true);
  config.model.hidden_dropout = 0.2;
  Trainer once(config), twice(config);
  for (int64_t iteration : {0, 5}) {
    const std::vector<Batch> batches = some_batches(2, static_cast<uint64_t>(iteration));
    twice.trainer.gradients(twice.ctx, batches, {.iteration = iteration});
    const StepReport a = once.trainer.update(
        once.ctx, once.trainer.gradients(once.ctx, batches, {.iteration = iteration}), 1e-2);
    const StepReport b = twice.trainer.update(
        twice.ctx, twice.trainer.gradients(twice.ctx, batches, {.iteration = iteration}), 1e-2);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  EXPECT_EQ(once.state(), twice.state());
}

// Language modelling with a penalty on confident tokens, as a program would write it.
class FocalObjective final : public Objective {
 public:
  std::vector<std::string> terms() const override { return {"plain loss"}; }
  Tensor loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
              std::span<Tensor> terms) override {
    Tensor losses = head.token_losses(ctx, states[0], micro.labels);
    Tensor plain = ops::weighted_sum(ctx, losses.detach(), micro.weights);
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, terms[0], plain.view({1}), terms[0]});
    return ops::weighted_sum(ctx, ops::mul(ctx, losses, losses), micro.weights);
  }
};

TEST(BatchStep, TakesAnObjective) {
  Trainer plain(small()),
      own(small(), {.objective = [](const Config&) { return std::make_unique<FocalObjective>(); }});
  const std::vector<Batch> batches = some_batches(2, 3);
  const StepReport a = plain.trainer.step(plain.ctx, batches, 0), b = own.trainer.step(own.ctx, batches, 0);
  ASSERT_EQ(b.terms.size(), 1u);
  EXPECT_EQ(b.terms[0].name, "plain loss");
  EXPECT_NEAR(b.terms[0].value, a.loss, 1e-13);
  EXPECT_GT(b.loss, a.loss * a.loss);  // squares of unequal losses
  EXPECT_GT(b.grad_norm, 1.5 * a.grad_norm);
  EXPECT_NEAR(own.trainer.evaluate(own.ctx, batches), b.loss, 1e-12);
}

// A batch without labels teaches nothing, and is no fault.
TEST(BatchStep, BatchesWithoutLabels) {
  for (bool per_token : {false, true}) {
    Config config = small();
    config.model.calculate_per_token_loss = per_token;
    Trainer run(config);
    std::vector<Batch> batches = some_batches(2, 5);
    for (Batch& batch : batches) batch.labels.assign(batch.labels.size(), kIgnoredLabel);
    const StepReport report = run.trainer.step(run.ctx, batches, 1e-2);
    EXPECT_EQ(report.loss, 0);
    EXPECT_EQ(report.grad_norm, 0);
    EXPECT_EQ(report.update, Update::taken);
  }
}

TEST(BatchStep, RefusesWhatDoesNotFit) {
  Trainer run(small());
  std::vector<Batch> batches = some_batches(2, 4);
  batches[1].labels.pop_back();
  EXPECT_THROW(run.trainer.step(run.ctx, batches, 0), Error);
  batches = some_batches(2, 4);
  batches[0].lengths = {8, 4};
  EXPECT_THROW(run.trainer.step(run.ctx, batches, 0), Error);
  EXPECT_THROW(run.trainer.step(run.ctx, std::vector<Batch>{}, 0), Error);
}

}  // namespace
}  // namespace megatron
