#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/transformer/moe/microbatch_share.h"

namespace megatron {

// The logits of a rank's tokens [tokens, experts] as a plan in which experts are chosen equally often: exp of
// the logits, its rows and columns scaled in turn until the columns' scales settle. The whole micro-batch
// counts, however it is split. Not differentiable; the host waits for the device.
Tensor sinkhorn(RankContext& ctx, const Tensor& logits, const MicrobatchShare& share);

}  // namespace megatron
