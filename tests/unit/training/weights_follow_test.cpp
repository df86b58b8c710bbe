#include <gtest/gtest.h>

#include "megatron/models/decoder_shape.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

// What a folder's weights replace need not be drawn.
TEST(RankTrainer, WeightsThatFollowAreNotDrawn) {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = 64, .length = 16});
  config.train.micro_batch_size = 2;
  const auto drawn = [&](bool follow) {
    RankContext ctx;
    ParallelContext alone;
    RankTrainer trainer(ctx, config, alone, DType::F32, {.weights_follow = follow});
    int64_t count = 0;
    for (Parameter* parameter : trainer.parameters())
      for (const float value : ctx.to_vector<float>(parameter->value)) count += value != 0;
    return count;
  };
  EXPECT_EQ(drawn(true), 0);
  EXPECT_GT(drawn(false), 0);
}

}  // namespace
}  // namespace megatron
