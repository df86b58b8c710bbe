#pragma once

#include <span>

#include "megatron/config/config.h"
#include "megatron/nn/batch.h"

namespace megatron {

// Arithmetic of one training step (forward and backward) of `tokens` tokens whose sequence lengths, squared,
// sum up to `squared_lengths`, as Megatron-LM counts it for its throughput: GEMMs, causal attention counted
// half, and the LM head over the padded vocabulary. Of a layer with experts, those that a token goes to
// count; routers do not. Latent attention and sparse attention inside a hybrid model do not count either,
// for Megatron-LM leaves them out.
double model_flops(const ModelConfig& config, int64_t padded_vocab_size, double tokens,
                   double squared_lengths);

// The same per token of sequences of `length` tokens; the vocabulary is padded for `tensor_parallel` ranks.
double model_flops_per_token(const ModelConfig& config, int64_t length, int64_t tensor_parallel = 1);

// The same of a run's step: a teacher, null where there is none, is passed forward alone.
double step_flops_per_token(const Config& config, const ModelConfig* teacher);

// The same of a vision tower and the layers behind it, for images of these patches: attention between all
// patches of a frame, or of a window. What does not learn is passed forward alone.
double tower_flops(const ModelConfig& config, std::span<const PatchGrid> grids);

// Parameters of the whole model, vocabulary padding left out.
int64_t parameter_count(const ModelConfig& config);

}  // namespace megatron
