#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// One linear layer per expert: rows [offsets[e], offsets[e + 1]) of x [rows, in] go through weight[e] of
// [experts, out, in]. offsets: int32 [experts + 1], on the device. Rows from offsets[experts] on belong to no
// expert and hold no values, neither in the result nor in the gradient of x.
Tensor grouped_linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Tensor& offsets);

}  // namespace megatron::ops
