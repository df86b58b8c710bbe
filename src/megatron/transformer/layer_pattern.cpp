#include "megatron/transformer/layer_pattern.h"

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

}  // namespace megatron
