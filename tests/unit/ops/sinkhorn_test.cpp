#include "megatron/ops/sinkhorn.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::random_tensor;

TEST(Sinkhorn, RowsAndColumnsSumToOne) {
  RankContext ctx(testing::test_device());
  const Tensor logits = random_tensor(ctx, {5, 4, 4}, 1);
  const auto y = ctx.to_vector<double>(ops::sinkhorn(ctx, logits, 60));
  for (size_t matrix = 0; matrix < 5; ++matrix)
    for (size_t i = 0; i < 4; ++i) {
      double row = 0, column = 0;
      for (size_t j = 0; j < 4; ++j) row += y[matrix * 16 + i * 4 + j], column += y[matrix * 16 + j * 4 + i];
      EXPECT_NEAR(row, 1, 1e-9);
      EXPECT_NEAR(column, 1, 1e-12);
    }
}

TEST(Sinkhorn, IsItsDefinitionAndItsGradientsFollow) {
  RankContext ctx(testing::test_device());
  const std::vector<Tensor> logits = {random_tensor(ctx, {6, 3, 3}, 2)};
  for (int64_t iterations : {1, 2, 7}) {
    SCOPED_TRACE(iterations);
    auto expected = ctx.to_vector<double>(logits[0]);
    for (double& x : expected) x = std::exp(x);  // less a row's maximum: the first division takes it out
    for (int64_t step = 0; step < 2 * iterations; ++step)
      for (size_t matrix = 0; matrix < 6; ++matrix)
        for (size_t line = 0; line < 3; ++line) {
          const size_t first = matrix * 9 + (step % 2 ? line : 3 * line), apart = step % 2 ? 3 : 1;
          const double sum = expected[first] + expected[first + apart] + expected[first + 2 * apart];
          for (size_t i = 0; i < 3; ++i) expected[first + i * apart] /= sum;
        }
    const auto y = ctx.to_vector<double>(ops::sinkhorn(ctx, logits[0], iterations));
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-13);
    testing::gradcheck(
        ctx,
        [&](RankContext& c, const auto& in, const auto&) {
          return std::vector{ops::sinkhorn(c, in[0], iterations)};
        },
        logits, {}, 1e-8);
  }
}

}  // namespace
}  // namespace megatron
