#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// The sum of all elements: [1].
Tensor sum(RankContext& ctx, const Tensor& x);

}  // namespace megatron::ops
