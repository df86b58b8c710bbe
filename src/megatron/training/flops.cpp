#include "megatron/training/flops.h"

#include "megatron/models/gpt.h"

namespace megatron {

double model_flops_per_token(const ModelConfig& config, int64_t length) {
  auto heads = static_cast<double>(config.num_attention_heads),
       channels = static_cast<double>(config.kv_channels);
  auto groups = config.num_query_groups ? static_cast<double>(config.num_query_groups) : heads;
  auto hidden = static_cast<double>(config.hidden_size), ffn = static_cast<double>(config.ffn_hidden_size);
  double projections = 2 * hidden * (heads + 2 * groups) * channels + 2 * heads * channels * hidden;
  double attention = 2 * heads * channels * static_cast<double>(length);
  double mlp = 2 * hidden * ffn * (config.gated_linear_unit ? 3 : 2);
  double head = 2 * hidden * static_cast<double>(config.vocab_size);
  return 3 * (static_cast<double>(config.num_layers) * (projections + attention + mlp) + head);
}

int64_t parameter_count(const ModelConfig& config) {
  GptModel model(config, {.first_layer = 0, .layers = config.num_layers}, {}, DType::F32);
  int64_t count = 0;
  model.visit([&](Parameter& parameter) { count += parameter.shard.global_shape.numel(); });
  return count;
}

}  // namespace megatron
