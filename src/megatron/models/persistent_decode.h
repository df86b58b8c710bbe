#pragma once

#include "megatron/models/model.h"

namespace megatron {

// Logits [sequences, padded vocabulary] of a decoder's step by one persistent kernel, which suits few
// sequences of a model that is nothing but RMSNorm, rotated attention and SwiGLU. Undefined, and nothing was
// done, for other models and steps.
Tensor decode_persistently(RankContext& ctx, Model& model, const Tensor& ids, const SeqInfo& seq);

}  // namespace megatron
