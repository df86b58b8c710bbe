#include "megatron/models/objectives/grpo_objective.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/gradcheck.h"

namespace megatron::rl {
namespace {

using megatron::testing::gradcheck;
using megatron::testing::random_tensor;

constexpr int64_t kTokens = 12;

struct Tokens {
  Tensor losses, labels, values, weights;
};

// Some ratios beyond either bound, with advantages of both signs, and two labels that are ignored.
Tokens tokens_of(RankContext& ctx) {
  std::vector<int64_t> labels(kTokens, 3);
  labels[4] = labels[9] = -100;
  Tokens tokens{.losses = random_tensor(ctx, {kTokens}, 1),
                .labels = ctx.from_vector(labels, {kTokens}),
                .values = random_tensor(ctx, {GrpoValues::count, kTokens}, 2),
                .weights = random_tensor(ctx, {kTokens}, 3)};
  return tokens;
}

TEST(GrpoLoss, EqualsItsDefinition) {
  RankContext ctx(megatron::testing::test_device());
  const Tokens tokens = tokens_of(ctx);
  const GrpoOptions options{.clamp_lower = .1, .clamp_upper = .3, .kl_beta = .7, .entropy_weight = .2};
  std::vector<Tensor> terms;
  for (int i = 0; i < 5; ++i) terms.push_back(ctx.zeros({1}, DType::F64));
  const double loss =
      ctx.item(grpo_loss(ctx, tokens.losses, tokens.labels, tokens.values, tokens.weights, options, terms));
  const auto losses = ctx.to_vector<double>(tokens.losses), weights = ctx.to_vector<double>(tokens.weights),
             values = ctx.to_vector<double>(tokens.values);
  double expected = 0;
  std::vector<double> sums(5);
  for (int64_t i = 0; i < kTokens; ++i) {
    if (i == 4 || i == 9) continue;
    const auto at = [&](GrpoValues::Row row) { return values[static_cast<size_t>(row * kTokens + i)]; };
    const double l = -losses[static_cast<size_t>(i)], weight = weights[static_cast<size_t>(i)];
    const double ratio = std::exp(l - at(GrpoValues::old_log_prob)), a = at(GrpoValues::advantage),
                 w = std::abs(at(GrpoValues::sampling_weight)),
                 apart = at(GrpoValues::reference_log_prob) - l, kl = std::exp(apart) - apart - 1,
                 entropy = -std::exp(l) * l;
    // A negative sampling weight only turns the sign of the advantage.
    const double sign = at(GrpoValues::sampling_weight) < 0 ? -1 : 1;
    expected += weight * (-w * std::min(ratio * a * sign, std::clamp(ratio, .9, 1.3) * a * sign) + .7 * kl -
                          .2 * entropy);
    sums[0] += weight * kl;
    sums[1] += weight * ratio;
    sums[2] += weight * entropy;
    sums[3] += ratio > 1.3 ? weight : 0;
    sums[4] += ratio < .9 ? weight : 0;
  }
  EXPECT_NEAR(loss, expected, 1e-12);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(ctx.item(terms[i]), sums[i], 1e-12) << i;
}

TEST(GrpoLoss, GradientsMatchDifferences) {
  RankContext ctx(megatron::testing::test_device());
  const Tokens tokens = tokens_of(ctx);
  for (const GrpoOptions& options : {GrpoOptions{}, GrpoOptions{.clamp_lower = .2, .clamp_upper = .28},
                                     GrpoOptions{.kl_beta = .5}, GrpoOptions{.entropy_weight = .3}})
    gradcheck(ctx,
              [&](RankContext& ctx, const std::vector<Tensor>& x, const std::vector<Weight>&) {
                return std::vector<Tensor>{
                    grpo_loss(ctx, x[0], tokens.labels, tokens.values, tokens.weights, options)};
              },
              {tokens.losses});
}

TEST(GrpoLoss, TokensThatDoNotCountHaveNoGradient) {
  RankContext ctx(megatron::testing::test_device());
  const Tokens tokens = tokens_of(ctx);
  Tape tape(ctx);
  const Tensor losses = tape.watch(tokens.losses);
  Tensor loss;
  {
    TapeScope scope(ctx, &tape);
    // All tokens have one weight, which an ignored label does not take part in.
    const Tensor weight = ctx.full({1}, DType::F64, .5).expand({kTokens});
    loss = grpo_loss(ctx, losses, tokens.labels, tokens.values, weight, {.kl_beta = 1});
  }
  tape.backward(ctx, loss, ctx.full({1}, DType::F64, 1));
  const auto gradient = ctx.to_vector<double>(tape.grad(losses));
  for (size_t i = 0; i < gradient.size(); ++i) EXPECT_EQ(gradient[i] == 0, i == 4 || i == 9) << i;
}

}  // namespace
}  // namespace megatron::rl
