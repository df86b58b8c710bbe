#include "megatron/training/flops.h"

#include "megatron/models/gpt.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {

double model_flops_per_token(const ModelConfig& config, int64_t length) {
  auto heads = static_cast<double>(config.num_attention_heads),
       channels = static_cast<double>(config.kv_channels);
  auto groups = config.num_query_groups ? static_cast<double>(config.num_query_groups) : heads;
  auto hidden = static_cast<double>(config.hidden_size), ffn = static_cast<double>(config.ffn_hidden_size);
  double projections = 2 * hidden * (heads + 2 * groups) * channels + 2 * heads * channels * hidden;
  double attention = 2 * heads * channels * static_cast<double>(length);
  double head = 2 * hidden * static_cast<double>(config.vocab_size);
  double width = 0;  // of all MLPs that a token passes
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!has_experts(config, layer)) {
      width += ffn;
      continue;
    }
    double expert = config.moe_ffn_hidden_size ? static_cast<double>(config.moe_ffn_hidden_size) : ffn;
    width += expert * static_cast<double>(config.moe_router_topk) +
             static_cast<double>(config.moe_shared_expert_intermediate_size);
  }
  double mlps = 2 * hidden * width * (config.gated_linear_unit ? 3 : 2);
  return 3 * (static_cast<double>(config.num_layers) * (projections + attention) + mlps + head);
}

int64_t parameter_count(const ModelConfig& config) {
  GptModel model(config, {.first_layer = 0, .layers = config.num_layers}, {}, DType::F32);
  int64_t count = 0;
  model.visit([&](Parameter& parameter) { count += parameter.shard.global_shape.numel(); });
  return count;
}

}  // namespace megatron
