#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// y = x · wᵀ in the accumulation dtype of x. x [tokens, in], weight [out, in], both of one dtype: products of
// bf16 numbers are exact in fp32, so that y is what a fp32 GEMM of widened operands yields, up to the order
// of its sums, at the speed of a bf16 one. Gradients of y are not rounded either: the three bf16 numbers that
// a fp32 one is the sum of are multiplied each.
Tensor wide_linear(RankContext& ctx, const Tensor& x, const Weight& weight);

}  // namespace megatron::ops
