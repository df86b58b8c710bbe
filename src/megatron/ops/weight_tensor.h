#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// A weight in some dtype as an ordinary tensor, whose gradient goes to the weight: for odd uses of one that
// no op of its own serves.
Tensor weight_tensor(RankContext& ctx, const Weight& weight, DType dtype);

}  // namespace megatron::ops
