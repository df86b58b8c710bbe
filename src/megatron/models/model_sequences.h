#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/sequence_batch.h"
#include "megatron/ops/rope_device.h"
#include "megatron/parallel/context/sequences.h"

namespace megatron {

// This rank's tokens of a micro-batch with the positions and rotary tables, of `dtype`, that the model's
// layers read.
SeqInfo model_sequences(RankContext& ctx, const TokenRows& rows, const ModelConfig& config,
                        const ContextParallel& context, DType dtype);
// Rotary frequencies on the device; undefined where the model has none of a kind.
struct StepFrequencies {
  ops::DeviceFrequencies all, local;
};
// Those of all steps of a decoder, where they do not depend on lengths.
StepFrequencies step_frequencies(RankContext& ctx, const ModelConfig& config, DType dtype);
// The same of a decoder's step. With `frequencies` nothing is copied to the device, unless queries grow with
// their position.
SeqInfo model_sequences(RankContext& ctx, const SequenceBatch& batch, const ModelConfig& config, DType dtype,
                        const StepFrequencies* frequencies = nullptr);

// Whether keys of a position are turned otherwise in longer sequences.
bool rope_depends_on_length(const ModelConfig& config);

}  // namespace megatron
