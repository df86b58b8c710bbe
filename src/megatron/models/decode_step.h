#pragma once

#include "megatron/models/model.h"
#include "megatron/models/model_sequences.h"

namespace megatron {

// Whether a model that lies on one rank decodes without the host, but for launches that are the same for all
// steps of one shape: then decode_step() can be captured.
bool can_capture_decode(const Model& model);

// Model::decode() of such a model: logits [sequences, vocabulary] of a step that is on the device already.
Tensor decode_step(RankContext& ctx, Model& model, const SequenceBatch& batch, PagedCache& cache,
                   const StepFrequencies& frequencies);

}  // namespace megatron
