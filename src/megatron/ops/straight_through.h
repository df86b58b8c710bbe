#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// `value` itself, in the memory of which nobody else writes; its gradient goes to `source` of the same shape.
Tensor straight_through(RankContext& ctx, const Tensor& value, const Tensor& source);

}  // namespace megatron::ops
