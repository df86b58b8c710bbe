#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Over the last dimension. A row of −∞ alone becomes zeros.
Tensor softmax(RankContext& ctx, const Tensor& x);

}  // namespace megatron::ops
