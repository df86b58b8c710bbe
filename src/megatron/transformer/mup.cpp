#include "megatron/transformer/mup.h"

#include <cmath>

namespace megatron {

double mup_width(const ModelConfig& config) {
  return static_cast<double>(config.hidden_size) / static_cast<double>(config.mup_base_hidden_size);
}

ModelConfig with_mup(const ModelConfig& config) {
  if (!config.use_mup) return config;
  const double width = mup_width(config);
  ModelConfig scaled = config;
  scaled.embedding_init_method_std = config.embedding_init_method_std.value_or(config.init_method_std);
  scaled.init_method_std = config.init_method_std / std::sqrt(width);
  if (!config.softmax_scale)
    scaled.softmax_scale = std::sqrt(config.mup_base_head_dim.value_or(1)) /
                           std::pow(static_cast<double>(config.kv_channels), config.mup_attn_scale_power);
  scaled.embedding_multiplier = config.embedding_multiplier.value_or(1) * config.mup_embedding_mult;
  scaled.output_multiplier = config.output_multiplier.value_or(1) *
                             (config.mup_output_mult == 1 ? 1 / width : config.mup_output_mult);
  return scaled;
}

bool is_hidden_matrix(const Parameter& parameter) {
  const std::string& name = parameter.name;
  return parameter.shard.global_shape.rank() > 1 && !name.ends_with(".bias") &&
         !name.starts_with("embedding.") && !name.starts_with("output_layer.");
}

}  // namespace megatron
