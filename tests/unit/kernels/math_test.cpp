#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

std::vector<float> apply(RankContext& ctx, Unary kind, const std::vector<float>& x) {
  Tensor in = ctx.from_vector(x, {static_cast<int64_t>(x.size())}), out = ctx.empty_like(in);
  ctx.kernels->unary(ctx.kernel_context(), {kind, in, {}, out});
  return ctx.to_vector<float>(out);
}

// The distance in units of the last place of the exact value.
double ulps(float found, double exact) {
  float nearest = static_cast<float>(exact);
  double unit = std::nextafter(std::abs(nearest), INFINITY) - std::abs(nearest);
  return std::abs(found - exact) / unit;
}

std::vector<float> between(double low, double high, int count = 200001) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    x[static_cast<size_t>(i)] = static_cast<float>(low + (high - low) * i / (count - 1));
  return x;
}

template <class Exact>
void check(Unary kind, const std::vector<float>& x, double tolerance, Exact exact) {
  RankContext ctx;
  auto y = apply(ctx, kind, x);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_LE(ulps(y[i], exact(static_cast<double>(x[i]))), tolerance) << x[i];
}

TEST(Math, ElementaryFunctionsAreGoodToTheLastPlaces) {
  check(Unary::Exp, between(-103, 88.7), 1.5, [](double x) { return std::exp(x); });
  check(Unary::Exp, between(-1e-3, 1e-3), 1, [](double x) { return std::exp(x); });
  check(Unary::Log, between(1e-6, 3), 1.5, [](double x) { return std::log(x); });
  check(Unary::Log, between(1, 1e30), 1.5, [](double x) { return std::log(x); });
  check(Unary::Tanh, between(-10, 10), 2, [](double x) { return std::tanh(x); });
  check(Unary::Tanh, between(-1e-3, 1e-3), 1, [](double x) { return std::tanh(x); });
  check(Unary::Sigmoid, between(-80, 80), 2.5, [](double x) { return 1 / (1 + std::exp(-x)); });
  check(Unary::Softplus, between(-80, 80), 2.5, [](double x) { return std::log1p(std::exp(x)); });
  check(Unary::Silu, between(-80, 80), 3, [](double x) { return x / (1 + std::exp(-x)); });
}

TEST(Math, GeluFollowsErfWithinTheRoundingOfItsSum) {
  RankContext ctx;
  auto x = between(-6, 6), y = apply(ctx, Unary::Gelu, x);
  for (size_t i = 0; i < x.size(); ++i) {
    double exact = 0.5 * x[i] * (1 + std::erf(x[i] * std::sqrt(0.5)));
    // Four roundings of half a unit each, and one unit for erf.
    ASSERT_NEAR(y[i], exact, 2.4e-7 * std::max(0.5f, std::abs(x[i]))) << x[i];
  }
}

TEST(Math, InfinityNanAndTheSmallestNumbers) {
  RankContext ctx;
  constexpr float inf = INFINITY, nan = NAN, tiny = 1e-44f;
  auto exp = apply(ctx, Unary::Exp, {-inf, inf, nan, 89.f, -104.f, 0.f});
  EXPECT_EQ(exp[0], 0.f);
  EXPECT_EQ(exp[1], inf);
  EXPECT_TRUE(std::isnan(exp[2]));
  EXPECT_EQ(exp[3], inf);
  EXPECT_EQ(exp[4], 0.f);
  EXPECT_EQ(exp[5], 1.f);
  auto log = apply(ctx, Unary::Log, {0.f, -1.f, inf, nan, tiny, 1.f});
  EXPECT_EQ(log[0], -inf);
  EXPECT_TRUE(std::isnan(log[1]));
  EXPECT_EQ(log[2], inf);
  EXPECT_TRUE(std::isnan(log[3]));
  EXPECT_NEAR(log[4], std::log(1e-44), 0.1);
  EXPECT_EQ(log[5], 0.f);
  auto tanh = apply(ctx, Unary::Tanh, {-inf, inf, nan});
  EXPECT_EQ(tanh[0], -1.f);
  EXPECT_EQ(tanh[1], 1.f);
  EXPECT_TRUE(std::isnan(tanh[2]));
  EXPECT_TRUE(std::isnan(apply(ctx, Unary::Relu, {nan})[0]));
  EXPECT_TRUE(std::isnan(apply(ctx, Unary::Silu, {nan})[0]));
  EXPECT_TRUE(std::isnan(apply(ctx, Unary::Gelu, {nan})[0]));
}

}  // namespace
}  // namespace megatron
