#include "megatron/ops/matmul.h"

#include <gtest/gtest.h>

#include "megatron/ops/linear.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

TEST(Matmul, GradientsOfEveryTransposition) {
  RankContext ctx(testing::test_device());
  for (bool ta : {false, true})
    for (bool tb : {false, true})
      for (bool batched : {false, true}) {
        Shape a = ta ? Shape{3, 4} : Shape{4, 3}, b = tb ? Shape{5, 3} : Shape{3, 5};
        if (batched) {
          a = {2, a[0], a[1]};
          b = {2, b[0], b[1]};
        }
        gradcheck(ctx,
                  [&](RankContext& c, const auto& in, const auto&) {
                    return std::vector{ops::matmul(c, in[0], in[1], {ta, tb, 0.7})};
                  },
                  {random_tensor(ctx, a, 1), random_tensor(ctx, b, 2)});
      }
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  RankContext ctx(testing::test_device());
  EXPECT_THROW(ops::matmul(ctx, random_tensor(ctx, {2, 3}, 1), random_tensor(ctx, {2, 3}, 1)), Error);
  EXPECT_THROW(ops::matmul(ctx, random_tensor(ctx, {2, 3}, 1), random_tensor(ctx, {1, 3, 2}, 1)), Error);
}

TEST(GroupedLinear, GradientsWithAnExpertWithoutRows) {
  RankContext ctx(testing::test_device());
  Tensor offsets = ctx.from_vector<int32_t>({0, 2, 2, 5}, {4});
  gradcheck(ctx,
            [&](RankContext& c, const auto& in, const auto& w) {
              return std::vector{ops::call_linear(c, in[0], w[0], {.offsets = offsets}).y};
            },
            {random_tensor(ctx, {5, 3}, 1)}, {random_tensor(ctx, {3, 4, 3}, 2)});
}

TEST(GroupedLinear, RunsOnMetaAndRefusesWhatDoesNotFit) {
  RankContext meta(kMeta);
  Tensor y = ops::call_linear(meta, meta.empty({8, 4}, DType::BF16), {meta.empty({3, 6, 4}, DType::BF16)},
                              {.offsets = meta.empty({4}, DType::I32)})
                 .y;
  EXPECT_EQ(y.shape(), (Shape{8, 6}));
  RankContext ctx(testing::test_device());
  EXPECT_THROW(ops::call_linear(ctx, random_tensor(ctx, {5, 3}, 1), {random_tensor(ctx, {3, 4, 3}, 2)},
                                {.offsets = ctx.zeros({3}, DType::I32)}),
               Error);
}

}  // namespace
}  // namespace megatron
