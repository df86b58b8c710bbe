#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

Tensor random(RankContext& ctx, Distribution kind, Shape shape, DType dtype, double a, double b, int64_t base,
              Shape strides) {
  Tensor out = ctx.empty(shape, dtype);
  ctx.kernels->random(
      ctx.kernel_context(),
      {.kind = kind, .out = out, .a = a, .b = b, .key = {42, 7}, .base = base, .global_strides = strides});
  return out;
}

TEST(Random, MomentsOfTheDistributions) {
  RankContext ctx(kCpu, 2);
  auto moments = [&](Distribution kind, double a, double b) {
    auto values = ctx.to_vector<double>(random(ctx, kind, {400, 500}, DType::F64, a, b, 0, {500, 1}));
    double sum = 0, squares = 0;
    for (double v : values) sum += v, squares += v * v;
    double mean = sum / static_cast<double>(values.size());
    return std::pair{mean, std::sqrt(squares / static_cast<double>(values.size()) - mean * mean)};
  };
  auto [normal_mean, normal_deviation] = moments(Distribution::Normal, 3, 0.5);
  EXPECT_NEAR(normal_mean, 3, 0.005);
  EXPECT_NEAR(normal_deviation, 0.5, 0.005);
  auto [uniform_mean, uniform_deviation] = moments(Distribution::Uniform, -1, 2);
  EXPECT_NEAR(uniform_mean, 0.5, 0.01);
  EXPECT_NEAR(uniform_deviation, 3 / std::sqrt(12.0), 0.01);
}

TEST(Random, AShardHoldsItsPartOfTheWhole) {
  RankContext ctx;
  Tensor whole = random(ctx, Distribution::Normal, {12, 30}, DType::F32, 0, 1, 0, {30, 1});
  Tensor shard = random(ctx, Distribution::Normal, {4, 10}, DType::F32, 0, 1, 5 * 30 + 20, {30, 1});
  EXPECT_EQ(ctx.to_vector<float>(whole.slice(0, 5, 9).slice(1, 20, 30)), ctx.to_vector<float>(shard));
}

TEST(Random, EveryDtypeRoundsTheSameValues) {
  RankContext ctx;
  auto exact = ctx.to_vector<double>(random(ctx, Distribution::Normal, {64}, DType::F64, 0, 1, 9, {1}));
  auto narrow = ctx.to_vector<bf16>(random(ctx, Distribution::Normal, {64}, DType::BF16, 0, 1, 9, {1}));
  for (size_t i = 0; i < exact.size(); ++i)
    EXPECT_EQ(static_cast<float>(narrow[i]), static_cast<float>(bf16(static_cast<float>(exact[i]))));
}

}  // namespace
}  // namespace megatron
