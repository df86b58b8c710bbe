#include "megatron/transformer/layer_pattern.h"

#include <algorithm>

namespace megatron {
namespace {

// A setting that is a number N, for every N-th layer, or a list with one 0 or 1 per layer.
bool nth_or_listed(const Json& setting, int64_t layer) {
  if (setting.is_array()) return setting[static_cast<size_t>(layer)].as_int() != 0;
  return (layer + 1) % setting.as_int() == 0;
}

}  // namespace

bool has_window(const ModelConfig& config, int64_t layer) {
  if (config.window_size.empty()) return false;
  const Json& skip = config.window_attn_skip_freq;
  if (skip.is_null()) return true;
  // A list marks the layers with a window, a number those without.
  return nth_or_listed(skip, layer) == skip.is_array();
}

bool has_rope(const ModelConfig& config, int64_t layer) {
  if (config.position_embedding_type != PositionEmbedding::rope &&
      config.position_embedding_type != PositionEmbedding::yarn)
    return false;
  return config.no_rope_freq.is_null() || !nth_or_listed(config.no_rope_freq, layer);
}

bool has_experts(const ModelConfig& config, int64_t layer) {
  if (config.num_moe_experts == 0) return false;
  const Json& pattern = config.moe_layer_freq;
  if (pattern.is_array()) return pattern[static_cast<size_t>(layer)].as_int() != 0;
  return layer % pattern.as_int() == 0;
}

ModelConfig continue_patterns(const ModelConfig& config, int64_t layers) {
  Json windows = Json::array(), without_rope = Json::array(), experts = Json::array();
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t layer = std::min(i, config.num_layers - 1);
    windows.push_back(has_window(config, layer) ? 1 : 0);
    without_rope.push_back(has_rope(config, layer) ? 0 : 1);
    experts.push_back(has_experts(config, layer) ? 1 : 0);
  }
  ModelConfig longer = config;
  longer.window_attn_skip_freq = windows;
  longer.no_rope_freq = without_rope;
  longer.moe_layer_freq = experts;
  return longer;
}

}  // namespace megatron
