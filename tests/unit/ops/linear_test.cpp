#include "megatron/ops/linear.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;
using testing::TestWeight;

TEST(Linear, GradientsWithAndWithoutBias) {
  RankContext ctx(testing::test_device());
  for (bool bias : {false, true}) {
    std::vector<Tensor> weights = {random_tensor(ctx, {5, 4}, 2)};
    if (bias) weights.push_back(random_tensor(ctx, {5}, 3));
    gradcheck(
        ctx,
        [](RankContext& c, const auto& in, const auto& w) {
          return std::vector{ops::linear(c, in[0], w[0], w.size() > 1 ? w[1] : Weight{})};
        },
        {random_tensor(ctx, {3, 4}, 1)}, weights);
  }
}

TEST(Linear, WeightGradientsAddUpOverMicrobatchesAndCanWait) {
  RankContext ctx(testing::test_device());
  TestWeight w(ctx, random_tensor(ctx, {6, 4}, 1));
  auto backward = [&](bool deferred) {
    ctx.defer_weight_grads = deferred;
    Tape tape(ctx);
    Tensor x = random_tensor(ctx, {3, 4}, 2), y;
    {
      TapeScope scope(ctx, &tape);
      y = ops::linear(ctx, x, w.get());
    }
    tape.backward(ctx, y, random_tensor(ctx, {3, 6}, 3));
    if (deferred) tape.backward_weight(ctx);
  };
  backward(false);
  auto once = ctx.to_vector<double>(w.accumulator.main_grad);
  backward(true);
  auto twice = ctx.to_vector<double>(w.accumulator.main_grad);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-14);
  w.accumulator.start_step();
  backward(false);
  EXPECT_EQ(ctx.to_vector<double>(w.accumulator.main_grad), once);
}

TEST(Linear, RefusesWhatDoesNotFit) {
  RankContext ctx(testing::test_device());
  EXPECT_THROW(ops::linear(ctx, random_tensor(ctx, {3, 4}, 1), {random_tensor(ctx, {5, 3}, 1)}), Error);
  EXPECT_THROW(ops::linear(ctx, random_tensor(ctx, {3, 4}, 1), {random_tensor(ctx, {5, 4}, 1, DType::F32)}),
               Error);
}

}  // namespace
}  // namespace megatron
