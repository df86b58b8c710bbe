#include "megatron/inference/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace megatron {
namespace {

const std::vector<double> kLogits = {std::log(0.1), std::log(0.5), std::log(0.15), std::log(0.25)};

std::map<int64_t, double> shares(const Sampling& sampling) {
  std::map<int64_t, double> counts;
  constexpr int draws = 1000;
  for (int i = 0; i < draws; ++i) counts[sample_token(kLogits, sampling, (i + 0.5) / draws)] += 1.0 / draws;
  return counts;
}

TEST(Sampling, WithoutTemperatureTheLikeliest) {
  EXPECT_EQ(sample_token(kLogits, {}, 0.99), 1);
  const std::vector<double> equal = {1, 2, 2};
  EXPECT_EQ(sample_token(equal, {}, 0.99), 1);  // the first among equals
}

TEST(Sampling, AsTheModelSays) {
  auto counts = shares({.temperature = 1});
  EXPECT_NEAR(counts[0], 0.1, 2e-3);
  EXPECT_NEAR(counts[1], 0.5, 2e-3);
  EXPECT_NEAR(counts[2], 0.15, 2e-3);
  EXPECT_NEAR(counts[3], 0.25, 2e-3);
}

TEST(Sampling, LowerTemperatureIsBolder) {
  auto counts = shares({.temperature = 0.5});  // squares of the probabilities
  const double sum = 0.01 + 0.25 + 0.0225 + 0.0625;
  EXPECT_NEAR(counts[1], 0.25 / sum, 2e-3);
  EXPECT_NEAR(counts[0], 0.01 / sum, 2e-3);
}

// As Hugging Face's processor: once for each token of the text, whatever its sign.
TEST(Sampling, RepetitionIsPenalised) {
  std::vector<double> logits = {2, -1, 4, 0.5};
  penalise_repetition(logits, std::vector<int64_t>{0, 1, 0, 9}, 2);
  EXPECT_EQ(logits, (std::vector<double>{1, -2, 4, 0.5}));
  penalise_repetition(logits, std::vector<int64_t>{2}, 1);
  EXPECT_EQ(logits[2], 4);
}

TEST(Sampling, TopKKeepsTheLikeliest) {
  auto counts = shares({.temperature = 1, .top_k = 2});
  EXPECT_EQ(counts.size(), 2);
  EXPECT_NEAR(counts[1], 0.5 / 0.75, 2e-3);
  EXPECT_NEAR(counts[3], 0.25 / 0.75, 2e-3);
}

TEST(Sampling, TopPKeepsWhatReachesIt) {
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.4}).size(), 1);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.6}).size(), 2);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.8}).size(), 3);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 1}).size(), 4);
}

}  // namespace
}  // namespace megatron
