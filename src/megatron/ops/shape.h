#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// The same elements under another shape, without a copy; one size may be -1.
Tensor view(RankContext& ctx, const Tensor& x, const Shape& shape);

}  // namespace megatron::ops
