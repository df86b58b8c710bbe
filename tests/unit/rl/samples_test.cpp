#include "megatron/rl/samples.h"

#include <gtest/gtest.h>

#include <cmath>

#include "megatron/models/objectives/grpo_objective.h"

namespace megatron::rl {
namespace {

// A prompt of `prompt` tokens and an answer, numbered from `first` on.
Sample sample_of(int64_t first, int64_t prompt, int64_t answer, double advantage) {
  Sample sample;
  for (int64_t i = 0; i < prompt + answer; ++i) sample.rollout.tokens.push_back(first + i);
  sample.rollout.prompt_tokens = prompt;
  sample.advantage = advantage;
  for (int64_t i = 0; i < answer; ++i) {
    sample.old_log_probs.push_back(-0.5 - static_cast<double>(i));
    sample.rollout.log_probs.push_back(-1);
  }
  return sample;
}

TEST(Samples, FillTheFirstRowWithRoom) {
  std::vector<Sample> samples;
  for (const int64_t tokens : {5, 6, 3, 1, 2}) samples.push_back(sample_of(10, 1, tokens - 1, 1));
  using Rows = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(rows_of_samples(samples, {.length = 8}), (Rows{{0}, {1}, {2}, {3}, {4}}));
  EXPECT_EQ(rows_of_samples(samples, {.length = 8, .max_packed = 50}), (Rows{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(rows_of_samples(samples, {.length = 8, .max_packed = 2}), (Rows{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(rows_of_samples(samples, {.length = 9, .max_packed = 3}), (Rows{{0, 2, 3}, {1, 4}}));
}

TEST(Samples, BecomeRowsWhoseAnswersArePredicted) {
  const std::vector<Sample> samples = {sample_of(10, 2, 2, 1.5), sample_of(20, 1, 1, -1)};
  const std::vector<std::vector<int64_t>> packed = {{0, 1}, {}};
  const Batch batch = batch_of_rows(samples, packed, {.length = 7, .max_packed = 4, .pad = 9});
  batch.check();
  constexpr int64_t none = kIgnoredLabel;
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.ids, (std::vector<int64_t>{10, 11, 12, 13, 20, 21, 9, 9, 9, 9, 9, 9, 9, 9}));
  EXPECT_EQ(batch.labels, (std::vector<int64_t>{none, 12, 13, none, 21, none, none, none, none, none, none,
                                                none, none, none}));
  EXPECT_EQ(batch.lengths, (std::vector<int64_t>{4, 2, 1, 7}));
  const auto first = [&](GrpoValues::Row row) {
    return std::vector<double>(batch.values[row].begin(), batch.values[row].begin() + 6);
  };
  EXPECT_EQ(first(GrpoValues::advantage), (std::vector<double>{0, 1.5, 1.5, 0, -1, 0}));
  EXPECT_EQ(first(GrpoValues::old_log_prob), (std::vector<double>{0, -.5, -1.5, 0, -.5, 0}));
  EXPECT_EQ(first(GrpoValues::reference_log_prob), (std::vector<double>{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(first(GrpoValues::sampling_weight), (std::vector<double>{0, 1, 1, 0, 1, 0}));
}

TEST(Samples, AreWeightedByTheOldPolicyOverTheEngines) {
  const Sample sample = sample_of(10, 1, 2, 1);  // -0.5 and -1.5 over -1
  const std::vector<double> weights = sampling_weights(sample, {}), cut = sampling_weights(sample, 1.25);
  EXPECT_DOUBLE_EQ(weights[0], std::exp(.5));
  EXPECT_DOUBLE_EQ(weights[1], std::exp(-.5));
  EXPECT_DOUBLE_EQ(cut[0], 1.25);
  EXPECT_DOUBLE_EQ(cut[1], std::exp(-.5));
}

TEST(Samples, AreKeptToTheBit) {
  Sample sample = sample_of(10, 2, 3, 1.0 / 3);
  sample.sampling_weights = {1.0 / 7, 1, 2};
  const Sample back = Sample::from_json(Json::parse(sample.to_json().dump()));
  EXPECT_EQ(back.rollout.tokens, sample.rollout.tokens);
  EXPECT_EQ(back.rollout.prompt_tokens, 2);
  EXPECT_EQ(back.advantage, sample.advantage);
  EXPECT_EQ(back.old_log_probs, sample.old_log_probs);
  EXPECT_EQ(back.sampling_weights, sample.sampling_weights);
}

}  // namespace
}  // namespace megatron::rl
