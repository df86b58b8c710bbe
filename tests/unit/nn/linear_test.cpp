#include "megatron/nn/linear.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"
#include "support/low_rank_adapter.h"

namespace megatron::testing {
namespace {

// A linear computes y = x · (w + ½ b · a)ᵀ. Reading the weight in any other way throws, since it would leave
// the adapter out.
TEST(ApplyLinear, AppliesTheParametersAdapter) {
  RankContext ctx;
  Parameter weight("mlp.weight", ShardSpec::whole({3, 2}), Initializer::constant(0));
  weight.value = random_tensor(ctx, {3, 2}, 1);
  weight.trainable = false;
  const Tensor x = random_tensor(ctx, {4, 2}, 2), a = random_tensor(ctx, {1, 2}, 3),
               b = random_tensor(ctx, {3, 1}, 4);
  Tensor merged = ctx.empty({3, 2}, DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {weight.value, merged});
  EXPECT_EQ(ctx.to_vector<double>(apply_linear(ctx, x, weight).y),
            ctx.to_vector<double>(ops::linear(ctx, x, weight.get(ctx))));
  weight.adapter = std::make_unique<LowRankAdapter>(Weight{a}, Weight{b}, Weight{}, 0.5);
  ctx.kernels->gemm(ctx.kernel_context(), {.a = b, .b = a, .c = merged, .alpha = 0.5, .beta = 1});
  const auto adapted = ctx.to_vector<double>(apply_linear(ctx, x, weight).y),
             expected = ctx.to_vector<double>(ops::linear(ctx, x, {merged}));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(adapted[i], expected[i], 1e-9);
  try {
    weight.get(ctx);
    ADD_FAILURE() << "the weight was read without its adapter";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "mlp.weight: its adapter acts in linears alone, and this is another use of the weight");
  }
}

}  // namespace
}  // namespace megatron::testing
