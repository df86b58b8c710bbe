#include "megatron/ops/reduce.h"

#include <gtest/gtest.h>

#include "megatron/ops/softmax.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

TEST(Reduce, GradientsOverEveryDimension) {
  RankContext ctx(testing::test_device());
  for (int dim : {0, 1, -1})
    for (bool keep : {false, true})
      gradcheck(ctx,
                [&](RankContext& c, const auto& in, const auto&) {
                  return std::vector{ops::sum(c, in[0], dim, keep), ops::mean(c, in[0], dim, keep),
                                     ops::max(c, in[0], dim, keep), ops::min(c, in[0], dim, keep)};
                },
                {random_tensor(ctx, {3, 4, 5}, 1)});
}

TEST(Reduce, GradientsOverEverything) {
  RankContext ctx(testing::test_device());
  gradcheck(ctx,
            [](RankContext& c, const auto& in, const auto&) {
              return std::vector{ops::sum(c, in[0]), ops::mean(c, in[0])};
            },
            {random_tensor(ctx, {3, 40}, 1)});
}

TEST(Reduce, EqualMaximaShareTheGradient) {
  RankContext ctx(testing::test_device());
  Tape tape(ctx);
  Tensor x = tape.watch(ctx.from_vector<double>({1, 3, 3, 0}, {4})), y;
  {
    TapeScope scope(ctx, &tape);
    y = ops::max(ctx, x, 0);
  }
  tape.backward(ctx, y);
  EXPECT_EQ(ctx.to_vector<double>(tape.grad(x)), (std::vector<double>{0, 0.5, 0.5, 0}));
}

TEST(Reduce, LongSumsInNarrowTypesStayAccurate) {
  RankContext ctx(testing::test_device(), 2);
  for (DType dtype : {DType::F32, DType::BF16, DType::F16})
    for (int dim : {0, 1}) {
      Tensor x = random_tensor(ctx, {777, 391}, 1, dtype), wide = ctx.empty(x.shape(), DType::F64);
      ctx.kernels->copy(ctx.kernel_context(), {x, wide});
      Tensor mean = ops::mean(ctx, x, dim), mean_wide = ctx.empty(mean.shape(), DType::F64);
      ctx.kernels->copy(ctx.kernel_context(), {mean, mean_wide});
      auto exact = ctx.to_vector<double>(ops::mean(ctx, wide, dim)), found = ctx.to_vector<double>(mean_wide);
      for (size_t i = 0; i < exact.size(); ++i)
        EXPECT_NEAR(found[i], exact[i], dtype == DType::F32 ? 1e-7 : 2e-3 * std::abs(exact[i]) + 1e-4);
    }
}

TEST(Softmax, GradientsAndMaskedRows) {
  RankContext ctx(testing::test_device());
  gradcheck(ctx,
            [](RankContext& c, const auto& in, const auto&) { return std::vector{ops::softmax(c, in[0])}; },
            {random_tensor(ctx, {3, 7}, 1, DType::F64, 3)});
  constexpr double inf = INFINITY;
  auto y = ctx.to_vector<double>(
      ops::softmax(ctx, ctx.from_vector<double>({-inf, -inf, 0, -inf, 1000, 1000}, {3, 2})));
  EXPECT_EQ(y, (std::vector<double>{0, 0, 1, 0, 0.5, 0.5}));
}

TEST(Reduce, RefusesWhatDoesNotFit) {
  RankContext ctx(testing::test_device());
  EXPECT_THROW(ops::sum(ctx, random_tensor(ctx, {2}, 1), 1), Error);
  EXPECT_THROW(ops::max(ctx, ctx.empty({0, 3}, DType::F32), 0), Error);
  EXPECT_THROW(ops::mean(ctx, ctx.empty({3}, DType::I64)), Error);
}

}  // namespace
}  // namespace megatron
