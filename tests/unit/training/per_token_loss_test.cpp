#include <gtest/gtest.h>

#include <cmath>

#include "megatron/models/decoder_shape.h"
#include "megatron/training/step/rank_trainer.h"
#include "support/optimizer_state.h"

// A loss per token divides gradients by a count that is known only once all were made.
namespace megatron {
namespace {

struct Step {
  double norm = 0;
  std::vector<double> before, after;  // all masters
};

std::vector<double> masters(RankContext& ctx, RankTrainer& trainer) {
  std::vector<double> all;
  for (const OptimizerTensor& entry : trainer.optimizer().state()) {
    if (entry.kind != "master") continue;
    auto values = ctx.to_vector<float>(testing::wide_values(ctx, entry));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// 253 labels: 1/253 lies half way between two numbers of bf16.
Step step(bool wide, double clip) {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = 64, .length = 23});
  config.model.calculate_per_token_loss = true;
  config.train.micro_batch_size = 11;
  config.ddp.grad_reduce_in_fp32 = wide;
  config.optimizer.optimizer = OptimizerKind::sgd;
  config.optimizer.sgd_momentum = 0;
  config.optimizer.weight_decay = 0;
  config.optimizer.clip_grad = clip;
  RankContext ctx;
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, DType::BF16);
  std::vector<int64_t> tokens(11 * 24);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i * i % 61);
  Step result;
  result.before = masters(ctx, trainer);
  result.norm = trainer.step(ctx, tokens, 1).grad_norm;
  result.after = masters(ctx, trainer);
  return result;
}

// Rounding of single gradients averages out, a rounded factor does not.
TEST(PerTokenLoss, NarrowGradientsAreDividedExactly) {
  for (double clip : {0.0, 1e-2}) {
    SCOPED_TRACE(clip);
    const Step wide = step(true, clip), narrow = step(false, clip);
    EXPECT_NEAR(narrow.norm / wide.norm, 1, 2e-4);
    double both = 0, own = 0;
    for (size_t i = 0; i < wide.before.size(); ++i) {
      const double update = wide.after[i] - wide.before[i];
      both += update * (narrow.after[i] - narrow.before[i]);
      own += update * update;
    }
    ASSERT_GT(own, 0);
    EXPECT_NEAR(both / own, 1, 2e-4);
  }
}

}  // namespace
}  // namespace megatron
