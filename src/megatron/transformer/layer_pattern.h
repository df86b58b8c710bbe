#pragma once

#include "megatron/config/schema/model_config.h"

namespace megatron {

// What a layer is made of: a part in which tokens see each other, a part in which each is alone, or both.
enum class MixerKind : uint8_t { none, attention, latent_attention, mamba, delta_net };
enum class FeedForwardKind : uint8_t { none, mlp, experts };
MixerKind mixer_kind(const ModelConfig& config, int64_t layer);
FeedForwardKind feed_forward_kind(const ModelConfig& config, int64_t layer);

// Whether some layer carries a state along the sequence.
bool carries_states(const ModelConfig& config);

// Of the initial weights that lead back to the residual stream: smaller the more parts add to it.
double output_deviation(const ModelConfig& config);

// Which layers (counted from 0 over the whole model) differ from the others.
bool has_window(const ModelConfig& config, int64_t layer);   // sees only the last window_size[0] + 1 keys
bool has_rope(const ModelConfig& config, int64_t layer);     // turns queries and keys by their positions
bool has_experts(const ModelConfig& config, int64_t layer);  // in place of an MLP

// The same model with its patterns written out for `layers` layers: those
// beyond its own are as its last.
ModelConfig continue_patterns(const ModelConfig& config, int64_t layers);

}  // namespace megatron
