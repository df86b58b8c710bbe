#include "megatron/ops/shape.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

TEST(ShapeOps, GradientsOfViewsAndRearrangements) {
  RankContext ctx(testing::test_device());
  gradcheck(ctx,
            [](RankContext& c, const auto& in, const auto&) {
              Tensor turned = ops::transpose(c, ops::view(c, in[0], {2, 3, 4}), 0, 2);
              Tensor dense = ops::contiguous(c, turned);
              Tensor joined = ops::concat(c, std::vector{dense, in[1]}, 1);
              auto parts = ops::split(c, joined, std::vector<int64_t>{1, 3, 1}, 1);
              return std::vector{ops::slice(c, turned, 1, 1, 3), parts[0], parts[2],
                                 ops::expand(c, ops::slice(c, in[1], 2, 0, 1), {4, 2, 5})};
            },
            {random_tensor(ctx, {6, 4}, 1), random_tensor(ctx, {4, 2, 2}, 2)});
}

TEST(ShapeOps, PiecesTogetherAreTheWhole) {
  RankContext ctx(testing::test_device());
  Tensor x = random_tensor(ctx, {5, 6, 2}, 1);
  auto parts = ops::chunk(ctx, x, 3, 1);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[1].shape(), (Shape{5, 2, 2}));
  EXPECT_EQ(ctx.to_vector<double>(ops::concat(ctx, parts, 1)), ctx.to_vector<double>(x));
}

TEST(ShapeOps, RefusesWhatDoesNotFit) {
  RankContext ctx(testing::test_device());
  Tensor x = random_tensor(ctx, {5, 6}, 1);
  EXPECT_THROW(ops::view(ctx, x, {7, 5}), Error);
  EXPECT_THROW(ops::slice(ctx, x, 2, 0, 1), Error);
  EXPECT_THROW(ops::split(ctx, x, std::vector<int64_t>{2, 2}, 1), Error);
  EXPECT_THROW(ops::chunk(ctx, x, 4, 0), Error);
  EXPECT_THROW(ops::concat(ctx, std::vector{x, random_tensor(ctx, {4, 5}, 1)}, 0), Error);
  EXPECT_THROW(ops::concat(ctx, {}, 0), Error);
}

}  // namespace
}  // namespace megatron
