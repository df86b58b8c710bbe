#include "megatron/training/run/batch_schedule.h"

#include <gtest/gtest.h>

#include "megatron/models/parallel_setup.h"

#include "megatron/base/error.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

Config with_batches(int64_t micro, int64_t global) {
  Config config;
  config.model.seq_length = 100;
  config.train.micro_batch_size = micro;
  config.train.global_batch_size = global;
  return config;
}

TEST(BatchSchedule, Constant) {
  const BatchSchedule schedule(with_batches(2, 8), 2);
  EXPECT_EQ(schedule.at(0), 8);
  EXPECT_EQ(schedule.at(1 << 30), 8);
  EXPECT_EQ(schedule.iterations_of(8 * 10 + 7), 10);
  EXPECT_EQ(schedule.samples_of(10), 80);
}

// Thresholds are tokens; a batch that passes one is still of the old size.
TEST(BatchSchedule, InSteps) {
  Config config = with_batches(2, 0);
  config.train.step_batch_size_schedule = {"0:4", "1K:8, 0.01M:16"};
  const BatchSchedule schedule(config, 2);
  EXPECT_EQ(schedule.at(0), 4);
  EXPECT_EQ(schedule.at(9), 4);
  EXPECT_EQ(schedule.at(10), 8);
  EXPECT_EQ(schedule.at(99), 8);
  EXPECT_EQ(schedule.at(100), 16);
  // 0 4 8 | 12 20 … 92 | 100
  EXPECT_EQ(schedule.samples_of(3), 12);
  EXPECT_EQ(schedule.samples_of(14), 100);
  EXPECT_EQ(schedule.samples_of(15), 116);
  for (int64_t iterations : {0, 1, 3, 4, 14, 15, 40}) {
    const int64_t samples = schedule.samples_of(iterations);
    EXPECT_EQ(schedule.iterations_of(samples), iterations);
    EXPECT_EQ(schedule.iterations_of(samples + 3), iterations);
    int64_t consumed = 0;
    for (int64_t i = 0; i < iterations; ++i) consumed += schedule.at(consumed);
    EXPECT_EQ(consumed, samples);
  }
}

// As Megatron-LM's ramp-up: sizes 4, 6, 8 last 50 samples each, then 10.
TEST(BatchSchedule, RampUp) {
  Config config = with_batches(1, 10);
  config.train.rampup_batch_size = {4, 2, 150};
  const BatchSchedule schedule(config, 2);
  EXPECT_EQ(schedule.at(49), 4);
  EXPECT_EQ(schedule.at(50), 6);
  EXPECT_EQ(schedule.at(100), 8);
  EXPECT_EQ(schedule.at(149), 8);
  EXPECT_EQ(schedule.at(150), 10);
}

TEST(BatchSchedule, WhatDoesNotDivideIsRefusedOrMadeSmaller) {
  Config config = with_batches(2, 10);
  const auto refusal = [&](int64_t replicas) {
    return testing::error_of([&] { BatchSchedule(config, replicas); });
  };
  EXPECT_EQ(
      refusal(2),
      "a batch of 10 sequences is no whole number of micro-batches of 2 on 2 replicas; give batch sizes "
      "that are multiples of 4, or --decrease-batch-size-if-needed");
  config.train.decrease_batch_size_if_needed = true;
  EXPECT_EQ(BatchSchedule(config, 2).at(0), 8);
  EXPECT_EQ(
      refusal(6),
      "a batch of 10 sequences is no whole number of micro-batches of 2 on 6 replicas; give batch sizes "
      "that are multiples of 12");
  for (const char* wrong : {"8", "800:4", "0:4 0:8", "0:4 100", "0:x", "0:0", "0:4 3Q:8"}) {
    config.train.step_batch_size_schedule = {wrong};
    EXPECT_THROW(BatchSchedule(config, 1), ConfigError) << wrong;
  }
}

// With 128 heads a rank of 30 has as many as one of 28: attention gains nothing from the two further ranks.
TEST(ReplicaSpeeds, FollowTheFullestRank) {
  ModelConfig model;
  model.hidden_size = 20480;
  model.num_attention_heads = 128;
  model.ffn_hidden_size = 81920;
  model.num_layers = 100;
  model.vocab_size = 1;
  model.seq_length = 16384;
  const std::vector<int> speeds = replica_speeds(model, {32, 30, 28});
  const auto share = [&](size_t i) { return static_cast<double>(speeds[i]) / speeds[0]; };
  EXPECT_LT(share(1), 30.0 / 32);
  EXPECT_GT(share(2), 28.0 / 32 * 0.95);
  model.num_attention_heads = 8;  // one of seven ranks has two heads, and all wait for it
  model.ffn_hidden_size = 1;
  const std::vector<int> few = replica_speeds(model, {8, 7});
  EXPECT_NEAR(static_cast<double>(few[1]) / few[0], 0.5, 1e-3);
}

}  // namespace
}  // namespace megatron
