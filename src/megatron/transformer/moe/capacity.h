#pragma once

#include <optional>

#include "megatron/config/schema/model_config.h"
#include "megatron/parallel/expert/expert_dispatcher.h"
#include "megatron/transformer/moe/microbatch_share.h"

namespace megatron {

struct CapacityOptions {
  double factor = 1;  // of the even share of the tokens
  TokenDropPolicy policy = TokenDropPolicy::probs;
};

// Tokens that an expert takes of a micro-batch.
int64_t expert_capacity(int64_t tokens, int64_t k, int64_t experts, double factor);

// The choices of a rank with −1 for those that their expert has no room for. An expert takes the tokens with
// the largest probabilities, or the first ones; it decides over the whole micro-batch, however that is split.
// `positions` (int64 [tokens]) are those of this rank's tokens in their sequences. Of equal tokens the first
// in the micro-batch is taken; `token_index` (int64 [tokens]) say where they stand in it, if they do not in
// turn.
Tensor within_capacity(RankContext& ctx, const Routing& routing, int64_t experts,
                       const CapacityOptions& options, const MicrobatchShare& share, const Tensor& positions,
                       const Tensor& token_index = {});

}  // namespace megatron
