#include "megatron/transformer/layer_pattern.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/config/resolve/hybrid_pattern.h"
#include "megatron/config/resolve/layer_blocks.h"

namespace megatron {
namespace {

// A setting that is a number N, for every N-th layer, or a list with one 0 or 1 per layer.
bool nth_or_listed(const Json& setting, int64_t layer) {
  if (setting.is_array()) return setting[static_cast<size_t>(layer)].as_int() != 0;
  return (layer + 1) % setting.as_int() == 0;
}

// The symbol of a hybrid model's layer; 0 in other models.
char symbol(const ModelConfig& config, int64_t layer) {
  if (!config.is_hybrid_model) return 0;
  const std::string layers = parse_hybrid_pattern(config.hybrid_layer_pattern).layers;
  require(layer < static_cast<int64_t>(layers.size()), "layer {}: the hybrid pattern {} ends before it",
          layer, config.hybrid_layer_pattern);
  return layers[static_cast<size_t>(layer)];
}

bool is_linear(const ModelConfig& config, int64_t layer) {
  if (!config.attends_linearly()) return false;
  const Json& setting = config.linear_attention_freq;
  // A list marks the linear layers, a number the others.
  return setting.is_null() || nth_or_listed(setting, layer) == setting.is_array();
}

}  // namespace

MixerKind mixer_kind(const ModelConfig& config, int64_t layer) {
  switch (symbol(config, layer)) {
    case 0:
      if (!layer_block(config, layer).attention) return MixerKind::none;
      if (is_linear(config, layer)) return MixerKind::delta_net;
      return config.multi_latent_attention ? MixerKind::latent_attention : MixerKind::attention;
    case '+':
    case 'D':
      return MixerKind::latent_attention;
    case 'M':
      return MixerKind::mamba;
    case 'G':
      return MixerKind::delta_net;
    case '-':
    case 'E':
      return MixerKind::none;
    default:
      return MixerKind::attention;
  }
}

FeedForwardKind feed_forward_kind(const ModelConfig& config, int64_t layer) {
  if (has_experts(config, layer)) return FeedForwardKind::experts;
  const char kind = symbol(config, layer);
  const bool here = kind == '-' || (kind == 0 && layer_block(config, layer).mlp);
  return here ? FeedForwardKind::mlp : FeedForwardKind::none;
}

bool carries_states(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const MixerKind kind = mixer_kind(config, layer);
    if (kind == MixerKind::mamba || kind == MixerKind::delta_net) return true;
  }
  return false;
}

bool has_window(const ModelConfig& config, int64_t layer) {
  if (config.window_size.empty()) return false;
  const Json& skip = config.window_attn_skip_freq;
  if (skip.is_null()) return true;
  // A list marks the layers with a window, a number those without.
  return nth_or_listed(skip, layer) == skip.is_array();
}

bool has_rope(const ModelConfig& config, int64_t layer) {
  if (config.position_embedding_type != PositionEmbedding::rope &&
      config.position_embedding_type != PositionEmbedding::yarn &&
      config.position_embedding_type != PositionEmbedding::mrope)
    return false;
  return config.no_rope_freq.is_null() || !nth_or_listed(config.no_rope_freq, layer);
}

bool has_experts(const ModelConfig& config, int64_t layer) {
  if (config.num_moe_experts == 0) return false;
  if (config.is_hybrid_model) return symbol(config, layer) == 'E';
  const Json& pattern = config.moe_layer_freq;
  if (pattern.is_array()) return pattern[static_cast<size_t>(layer)].as_int() != 0;
  return layer % pattern.as_int() == 0;
}

bool has_indexer(const ModelConfig& config, int64_t layer) {
  return attends_to_chosen(config, layer) && config.chooser_of_keys(layer) == layer;
}

bool attends_to_chosen(const ModelConfig& config, int64_t layer) {
  if (!config.attends_sparsely() || mixer_kind(config, layer) != MixerKind::latent_attention) return false;
  return !config.is_hybrid_model || symbol(config, layer) == 'D';
}

int64_t expert_layers_before(const ModelConfig& config, int64_t layer) {
  int64_t count = 0;
  for (int64_t before = 0; before < layer; ++before) count += has_experts(config, before) ? 1 : 0;
  return count;
}

int64_t expert_layers(const ModelConfig& config) { return expert_layers_before(config, config.num_layers); }

bool fills_exchanges(const ModelConfig& config) {
  return config.num_moe_experts > 0 &&
         (config.overlap_moe_expert_parallel_comm || config.overlap_dispatch_backward_with_experts_wgrad);
}

int64_t mtp_inner_layers(const ModelConfig& config) {
  if (!config.is_hybrid_model) return 1;
  return static_cast<int64_t>(parse_hybrid_pattern(config.hybrid_layer_pattern).mtp_layers.size());
}

ModelConfig continue_patterns(const ModelConfig& config, int64_t layers) {
  Json windows = Json::array(), without_rope = Json::array(), experts = Json::array(), linear = Json::array();
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t layer = std::min(i, config.num_layers - 1);
    windows.push_back(has_window(config, layer) ? 1 : 0);
    without_rope.push_back(has_rope(config, layer) ? 0 : 1);
    experts.push_back(has_experts(config, layer) ? 1 : 0);
    linear.push_back(is_linear(config, layer) ? 1 : 0);
  }
  ModelConfig longer = config;
  if (config.is_hybrid_model) {
    const HybridPattern pattern = parse_hybrid_pattern(config.hybrid_layer_pattern);
    longer.hybrid_layer_pattern = pattern.layers;
    for (int64_t depth = 0; depth < pattern.mtp_depths; ++depth)
      longer.hybrid_layer_pattern += pattern.mtp_layers;
  }
  longer.window_attn_skip_freq = windows;
  longer.no_rope_freq = without_rope;
  longer.moe_layer_freq = experts;
  longer.linear_attention_freq = linear;
  return longer;
}

}  // namespace megatron
