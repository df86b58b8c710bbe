#pragma once

#include "megatron/models/model.h"
#include "megatron/models/model_sequences.h"

namespace megatron {

// Whether a CUDA graph can capture decode_step(): the model lies on one rank, and the host only launches
// kernels, of which all steps of one shape launch the same.
bool can_capture_decode(const Model& model);

// Model::decode() of such a model: logits [sequences, vocabulary] of a step that is on the device already.
Tensor decode_step(RankContext& ctx, Model& model, const SequenceBatch& batch, PagedCache& cache,
                   const StepFrequencies& frequencies);

}  // namespace megatron
