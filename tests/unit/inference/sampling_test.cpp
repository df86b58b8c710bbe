#include "megatron/inference/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "megatron/base/error.h"

namespace megatron {
namespace {

std::vector<float> logs(std::vector<double> probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}
const std::vector<float> kLogits = logs({0.1, 0.5, 0.15, 0.25});

std::map<int64_t, double> shares(const Sampling& sampling) {
  std::map<int64_t, double> counts;
  constexpr int draws = 1000;
  for (int i = 0; i < draws; ++i) counts[sample_token(kLogits, sampling, (i + 0.5) / draws)] += 1.0 / draws;
  return counts;
}

std::vector<float> random_logits(size_t size, uint64_t seed, double spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = static_cast<float>(normal(random));
  return logits;
}

// The exact probabilities, by sorting everything in double.
std::vector<double> exact(std::span<const float> logits, const Sampling& sampling) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size());
  const double max = static_cast<double>(logits[order[0]]);
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = std::exp((static_cast<double>(logits[i]) - max) / sampling.temperature);
    if (p[i] < sampling.min_p) p[i] = 0;
  }
  if (sampling.top_k > 0) {
    const float last = logits[order[static_cast<size_t>(sampling.top_k) - 1]];
    for (size_t i = 0; i < p.size(); ++i)
      if (logits[i] < last) p[i] = 0;
  }
  double total = std::accumulate(p.begin(), p.end(), 0.0), sum = 0;
  for (size_t token : order) {
    if (sum >= sampling.top_p * total) p[token] = 0;
    sum += p[token];
  }
  total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

// Pearson's statistic of draws with a request's own numbers; tokens that are rare are taken together.
void expect_distribution(const std::vector<float>& logits, Sampling sampling) {
  constexpr int draws = 20000;
  const std::vector<double> p = exact(logits, sampling);
  std::vector<int> counts(logits.size());
  sampling.seed = 77;
  Sampler sampler(sampling, {});
  for (int i = 0; i < draws; ++i) {
    const int64_t token = sample_token(logits, sampling, sampler.uniform());
    ASSERT_GT(p[static_cast<size_t>(token)], 0) << token;
    ++counts[static_cast<size_t>(token)];
    sampler.push(token);
  }
  double statistic = 0, rare_expected = 0, rare_seen = 0;
  int cells = 0;
  auto add = [&](double expected, double seen) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] * draws >= 5) {
      add(p[i] * draws, counts[i]);
    } else {
      rare_expected += p[i] * draws;
      rare_seen += counts[i];
    }
  }
  if (rare_expected >= 5) add(rare_expected, rare_seen);
  const double freedom = std::max(cells - 1, 1);
  // Wilson and Hilferty's normal form of chi-square; 3.7 is passed by one in ten thousand.
  const double normal =
      (std::cbrt(statistic / freedom) - (1 - 2 / (9 * freedom))) / std::sqrt(2 / (9 * freedom));
  EXPECT_LT(normal, 3.7) << statistic << " with " << freedom;
}

TEST(Sampling, WithoutTemperatureTheLikeliest) {
  EXPECT_EQ(sample_token(kLogits, {}, 0.99), 1);
  const std::vector<float> equal = {1, 2, 2};
  EXPECT_EQ(sample_token(equal, {}, 0.99), 1);  // the first among equals
  EXPECT_EQ(sample_token(equal, {.temperature = 3, .top_k = 1}, 0.99), 1);
}

TEST(Sampling, LowerTemperatureIsBolder) {
  auto counts = shares({.temperature = 0.5});  // squares of the probabilities
  const double sum = 0.01 + 0.25 + 0.0225 + 0.0625;
  EXPECT_NEAR(counts[1], 0.25 / sum, 2e-3);
  EXPECT_NEAR(counts[0], 0.01 / sum, 2e-3);
}

TEST(Sampling, TopKKeepsTheLikeliestAndTheirEquals) {
  auto counts = shares({.temperature = 1, .top_k = 2});
  EXPECT_EQ(counts.size(), 2);
  EXPECT_NEAR(counts[1], 0.5 / 0.75, 2e-3);
  EXPECT_NEAR(counts[3], 0.25 / 0.75, 2e-3);
  const std::vector<float> equal = {1, 3, 2, 2, 0};
  std::map<int64_t, int> seen;
  for (int i = 0; i < 100; ++i) ++seen[sample_token(equal, {.temperature = 1, .top_k = 2}, i / 100.0)];
  EXPECT_EQ(seen.size(), 3);
}

TEST(Sampling, TopPKeepsWhatReachesIt) {
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.4}).size(), 1);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.6}).size(), 2);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.8}).size(), 3);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 1}).size(), 4);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0}).size(), 4);
}

TEST(Sampling, MinPIsAShareOfTheLikeliest) {
  EXPECT_EQ(shares({.temperature = 1, .min_p = 0.45}).size(), 2);
  EXPECT_EQ(shares({.temperature = 1, .min_p = 0.25}).size(), 3);
  EXPECT_EQ(shares({.temperature = 0.5, .min_p = 0.2}).size(), 2);  // of what the temperature left
}

TEST(Sampling, DistributionsPassChiSquare) {
  const std::vector<float> small = random_logits(50, 1, 1), large = random_logits(3000, 2, 2.5);
  for (const auto* logits : {&small, &large}) {
    expect_distribution(*logits, {.temperature = 1});
    expect_distribution(*logits, {.temperature = 0.7});
    expect_distribution(*logits, {.temperature = 1.3, .top_k = 20});
    expect_distribution(*logits, {.temperature = 1, .top_p = 0.9});
    expect_distribution(*logits, {.temperature = 1, .min_p = 0.05});
    expect_distribution(*logits, {.temperature = 1.5, .top_k = 40, .top_p = 0.8, .min_p = 0.01});
  }
}

// A flat distribution, of which nearly all tokens are needed.
TEST(Sampling, TopPOfAFlatVocabulary) {
  const std::vector<float> logits = random_logits(5000, 3, 0.01);
  const Sampling sampling{.temperature = 1, .top_p = 0.99};
  const std::vector<double> p = exact(logits, sampling);
  for (int i = 0; i < 200; ++i)
    EXPECT_GT(p[static_cast<size_t>(sample_token(logits, sampling, i / 200.0))], 0);
}

TEST(Sampling, LogProbabilitiesAreOfTheUnmodifiedLogits) {
  std::vector<float> logits = random_logits(150000, 4, 3);
  std::vector<float> before = logits;
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  Sampler sampler({.temperature = 0.1, .logit_bias = {{17, 100.0F}}}, {});
  const TokenChoice choice = sampler.choose(logits, {}, 3);
  EXPECT_EQ(choice.id, 17);
  EXPECT_NEAR(choice.logprob, static_cast<double>(before[17]) - std::log(sum), 1e-5);
  std::vector<float> sorted = before;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  ASSERT_EQ(choice.top.size(), 3);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(choice.top[i].second, static_cast<double>(sorted[i]) - std::log(sum), 1e-5);
}

// Repetition reads prompt and answer, presence and frequency the answer alone.
TEST(Sampling, Penalties) {
  const std::vector<int64_t> prompt = {0, 1, 0, 9};
  auto first = [&](Sampling sampling, std::vector<float> logits, std::vector<int64_t> answer) {
    Sampler sampler(sampling, prompt);
    for (int64_t token : answer) sampler.push(token);
    return sampler.choose(logits).id;
  };
  EXPECT_EQ(first({}, {2, -1, 1.5F, 0.5F}, {}), 0);
  EXPECT_EQ(first({.repetition_penalty = 2}, {2, -1, 1.5F, 0.5F}, {}), 2);
  EXPECT_EQ(first({.repetition_penalty = 2}, {-1.5F, -1, -1.8F, -1.9F}, {}), 2);  // -3, -2, -1.8, -1.9
  EXPECT_EQ(first({.presence_penalty = 1}, {2, -1, 1.5F, 0.5F}, {}), 0);
  EXPECT_EQ(first({.presence_penalty = 1}, {2, -1, 1.5F, 0.5F}, {0}), 2);
  EXPECT_EQ(first({.frequency_penalty = 0.3}, {2, -1, 1.5F, 0.5F}, {0}), 0);
  EXPECT_EQ(first({.frequency_penalty = 0.3}, {2, -1, 1.5F, 0.5F}, {0, 0}), 2);
}

TEST(Sampling, MasksAndForbiddenTokens) {
  Sampler sampler({}, {});
  const std::vector<uint32_t> allowed = {0b1001};
  std::vector<float> logits = kLogits;
  EXPECT_EQ(sampler.choose(logits, {.allowed = allowed}).id, 3);
  logits = kLogits;
  const std::vector<int64_t> forbidden = {1};
  EXPECT_EQ(sampler.choose(logits, {.allowed = {}, .forbidden = forbidden}).id, 3);
  const std::vector<uint32_t> none = {0};
  logits = kLogits;
  EXPECT_THROW(sampler.choose(logits, {.allowed = none}), Error);
  std::vector<float> overflow = {INFINITY, 1};
  EXPECT_THROW(sampler.choose(overflow), Error);
}

TEST(Sampling, SeedsDecide) {
  auto text = [&](uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed}, {});
    std::vector<int64_t> tokens;
    for (int i = 0; i < 40; ++i) {
      std::vector<float> logits = kLogits;
      tokens.push_back(sampler.choose(logits).id);
      sampler.push(tokens.back());
    }
    return tokens;
  };
  EXPECT_EQ(text(5), text(5));
  EXPECT_NE(text(5), text(6));
}

// With processed_logprobs, log-probabilities are those that tokens are drawn with.
TEST(Sampling, ProcessedLogprobsAreOfWhatIsDrawn) {
  for (const Sampling& settings : {Sampling{.temperature = 0.7}, Sampling{.temperature = 1.3, .top_k = 3},
                                   Sampling{.temperature = 1, .top_p = 0.8},
                                   Sampling{.temperature = 2, .top_k = 3, .top_p = 0.9, .min_p = 0.1}}) {
    Sampling sampling = settings;
    sampling.logprobs = LogprobsMode::processed_logprobs;
    const std::vector<float> logits = random_logits(40, 5, 1.5);
    const std::vector<double> p = exact(logits, sampling);
    size_t possible = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const TokenChoice told = log_probabilities(logits, sampling, static_cast<int64_t>(i), 40);
      EXPECT_NEAR(std::exp(static_cast<double>(told.logprob)), p[i], 1e-6) << i;
      possible += p[i] > 0;
      if (i + 1 == p.size()) EXPECT_EQ(told.top.size(), possible);
    }
    sampling.logprobs = LogprobsMode::raw_logprobs;
    const TokenChoice raw = log_probabilities(logits, sampling, 7, 0);
    EXPECT_EQ(raw.logprob, log_probabilities(logits, 7, 0).logprob);
  }
  // The likeliest token has all of the probability where nothing is drawn, also behind a bias.
  Sampler greedy({.top_k = 1, .logit_bias = {{0, 9}}, .logprobs = LogprobsMode::processed_logprobs}, {});
  std::vector<float> logits = kLogits;
  const TokenChoice choice = greedy.choose(logits, {}, 2);
  EXPECT_EQ(choice.id, 0);
  EXPECT_EQ(choice.logprob, 0);
  EXPECT_EQ(choice.top.size(), 1u);
}

}  // namespace
}  // namespace megatron
