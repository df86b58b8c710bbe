#include <gtest/gtest.h>

#include "megatron/models/decoder_shape.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

double evaluated(double dropout) {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = 64, .length = 16});
  config.model.hidden_dropout = config.model.attention_dropout = dropout;
  config.train.micro_batch_size = 2;
  RankContext ctx;
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, DType::F64);
  std::vector<int64_t> tokens(2 * 17);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i * 7 % 64);
  return trainer.evaluate(ctx, tokens);
}

TEST(Evaluate, DropsNothing) { EXPECT_EQ(evaluated(0.5), evaluated(0)); }

// One more in the softmax's denominator is a sink of score 0.
TEST(Evaluate, OffByOneSoftmaxIsASinkOfZero) {
  const auto loss = [](SoftmaxType type) {
    Config config;
    config.model = llama_style(
        {.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = 64, .length = 16});
    config.model.softmax_type = type;
    config.train.micro_batch_size = 2;
    RankContext ctx;
    ParallelContext alone;
    RankTrainer trainer(ctx, config, alone, DType::F64);
    for (Parameter* parameter : trainer.parameters())
      if (parameter->name.ends_with("softmax_offset"))
        ctx.kernels->fill(ctx.kernel_context(), {parameter->value, 0});
    std::vector<int64_t> tokens(2 * 17);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i * 7 % 64);
    return std::pair{trainer.evaluate(ctx, tokens), trainer.step(ctx, tokens, 0).loss};
  };
  const auto own = loss(SoftmaxType::off_by_one), sinks = loss(SoftmaxType::learnable),
             vanilla = loss(SoftmaxType::vanilla);
  EXPECT_EQ(own, sinks);
  EXPECT_NE(own, vanilla);
}

}  // namespace
}  // namespace megatron
