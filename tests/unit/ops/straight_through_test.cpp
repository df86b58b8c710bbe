#include "megatron/ops/straight_through.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

TEST(StraightThrough, HasOneTensorsValueAndGivesAnotherTheGradient) {
  RankContext ctx;
  const Tensor value = testing::random_tensor(ctx, {3, 4}, 1), grad = testing::random_tensor(ctx, {3, 4}, 2);
  Tape tape(ctx);
  const Tensor source = tape.watch(testing::random_tensor(ctx, {3, 4}, 3));
  Tensor y;
  {
    TapeScope scope(ctx, &tape);
    y = ops::straight_through(ctx, value, source);
  }
  EXPECT_EQ(ctx.to_vector<double>(y), ctx.to_vector<double>(value));
  tape.backward(ctx, y, grad);
  EXPECT_EQ(ctx.to_vector<double>(tape.grad(source)), ctx.to_vector<double>(grad));
}

// Where the value is the source, differences see the gradient.
TEST(StraightThrough, GradientMatchesDifferences) {
  RankContext ctx;
  testing::gradcheck(ctx,
                     [](RankContext& c, const std::vector<Tensor>& x, const std::vector<Weight>&) {
                       return std::vector<Tensor>{ops::straight_through(c, x[0].detach(), x[0])};
                     },
                     {testing::random_tensor(ctx, {3, 4}, 1)});
}

}  // namespace
}  // namespace megatron
