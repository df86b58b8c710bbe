#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/config/schema/model_config.h"
#include "megatron/nn/batch.h"

namespace megatron {

// The name under which Batch::extra holds the experts that routers choose again, int64 [tokens, layers with
// experts, k]; −1: by their logits.
inline constexpr const char* kRoutedExperts = "routed_experts";

// Throws where they do not fit the model.
void check_routed_experts(const Tensor& experts, int64_t tokens, const ModelConfig& model);
// A batch's on the device; undefined where it has none.
Tensor replayed_experts(RankContext& ctx, const Batch& batch);

}  // namespace megatron
