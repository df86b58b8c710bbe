#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/sequence_batch.h"
#include "megatron/parallel/context/sequences.h"

namespace megatron {

// This rank's tokens of a micro-batch with the positions and rotary tables, of `dtype`, that the model's
// layers read.
SeqInfo model_sequences(RankContext& ctx, const TokenRows& rows, const ModelConfig& config,
                        const ContextParallel& context, DType dtype);
// The same of a decoder's step.
SeqInfo model_sequences(RankContext& ctx, const SequenceBatch& batch, const ModelConfig& config, DType dtype);

// Whether keys of a position are turned otherwise in longer sequences.
bool rope_depends_on_length(const ModelConfig& config);

}  // namespace megatron
