#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Over one dimension, which goes (or stays with size 1, with `keep`), or over all elements, into [1].
Tensor sum(RankContext& ctx, const Tensor& x, int dim, bool keep = false);
Tensor mean(RankContext& ctx, const Tensor& x, int dim, bool keep = false);
Tensor sum(RankContext& ctx, const Tensor& x);
Tensor mean(RankContext& ctx, const Tensor& x);

// The largest or smallest value. Equal ones share the gradient.
Tensor max(RankContext& ctx, const Tensor& x, int dim, bool keep = false);
Tensor min(RankContext& ctx, const Tensor& x, int dim, bool keep = false);

}  // namespace megatron::ops
