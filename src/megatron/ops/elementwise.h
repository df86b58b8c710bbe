#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Arithmetic on tensors of one dtype. Shapes that differ are matched from the last dimension: a size of 1, or
// a missing dimension, repeats.
Tensor add(RankContext& ctx, const Tensor& a, const Tensor& b);
Tensor sub(RankContext& ctx, const Tensor& a, const Tensor& b);
Tensor mul(RankContext& ctx, const Tensor& a, const Tensor& b);
Tensor div(RankContext& ctx, const Tensor& a, const Tensor& b);

// alpha · a + beta · b of equal shapes; scale is alpha · a alone.
Tensor axpby(RankContext& ctx, double alpha, const Tensor& a, double beta, const Tensor& b);
Tensor scale(RankContext& ctx, const Tensor& a, double alpha);

// A mask: a ∘ b as bool. Integers too; no gradient.
Tensor compare(RankContext& ctx, Comparison kind, const Tensor& a, const Tensor& b);

// condition ? a : b, with condition bool; all three are repeated to one shape.
Tensor where(RankContext& ctx, const Tensor& condition, const Tensor& a, const Tensor& b);

// The values in another dtype; the gradient comes back in the dtype of x.
Tensor cast(RankContext& ctx, const Tensor& x, DType dtype);

// grad summed over the dimensions that were repeated, so that it has `shape`. Not differentiable.
Tensor sum_to(RankContext& ctx, const Tensor& grad, const Shape& shape);
// The shape that a and b are repeated to.
Shape broadcast_shape(const char* op, const Tensor& a, const Tensor& b);

}  // namespace megatron::ops
