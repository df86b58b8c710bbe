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

// Which layers (counted from 0 over the whole model) differ from the others.
bool has_window(const ModelConfig& config, int64_t layer);   // sees only the last window_size[0] + 1 keys
bool has_rope(const ModelConfig& config, int64_t layer);     // turns queries and keys by their positions
bool has_experts(const ModelConfig& config, int64_t layer);  // in place of an MLP
// Whether it attends to chosen keys alone; and whether its own indexer chooses them.
bool attends_to_chosen(const ModelConfig& config, int64_t layer);
bool has_indexer(const ModelConfig& config, int64_t layer);

// Layers with experts among the decoder's own, and among those before `layer`.
int64_t expert_layers(const ModelConfig& config);
int64_t expert_layers_before(const ModelConfig& config, int64_t layer);

// Whether weight gradients are made while gradients travel between experts.
bool fills_exchanges(const ModelConfig& config);

// Layers of one MTP layer: those of a hybrid model's own pattern, else one.
int64_t mtp_inner_layers(const ModelConfig& config);

// The same model with its patterns written out for `layers` layers: those beyond its own are as its last, or
// as the pattern of a hybrid model's MTP layers says.
ModelConfig continue_patterns(const ModelConfig& config, int64_t layers);

}  // namespace megatron
