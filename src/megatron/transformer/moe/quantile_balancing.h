#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/transformer/moe/microbatch_share.h"

namespace megatron {

// The k experts with the largest logits − beta, [rows, k], of this share's rows [rows, experts].
Tensor choose_below_quantiles(RankContext& ctx, const Tensor& logits, const Tensor& beta, int64_t k);

// The beta [experts], fp32 or fp64 as logits, that would have given every expert of this micro-batch as many
// tokens as the others: how far above the best score that a token refused an expert's logit has to be for the
// expert to have tokens · k / experts of them.
Tensor expert_quantiles(RankContext& ctx, const Tensor& logits, const Tensor& beta, int64_t k,
                        const MicrobatchShare& share);

}  // namespace megatron
