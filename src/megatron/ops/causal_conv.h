#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// A causal convolution along each sequence, every channel on its own, and silu: x [tokens, channels], weight
// [channels, 1, width], bias [channels] optional.
Tensor causal_conv(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                   const SequenceRows& rows);

}  // namespace megatron::ops
