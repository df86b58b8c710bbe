#include "megatron/training/plan/flops.h"

#include "megatron/config/resolve/layer_blocks.h"
#include "megatron/models/whole_model.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

double mamba_flops(const ModelConfig& config) {
  auto hidden = static_cast<double>(config.hidden_size),
       inner = static_cast<double>(config.mamba_num_heads * config.mamba_head_dim),
       states = static_cast<double>(config.mamba_state_dim),
       shared = static_cast<double>(config.mamba_num_groups) * states;
  return 2 * hidden * (2 * inner + 2 * shared + static_cast<double>(config.mamba_num_heads)) +
         7 * inner * states + 2 * inner * hidden;
}

double delta_net_flops(const ModelConfig& config) {
  auto hidden = static_cast<double>(config.hidden_size),
       heads = static_cast<double>(config.linear_num_value_heads),
       value = static_cast<double>(config.linear_value_head_dim), values = heads * value,
       keys = static_cast<double>(config.linear_num_key_heads * config.linear_key_head_dim),
       kernel = static_cast<double>(config.linear_conv_kernel_dim);
  return 2 * (hidden * (2 * keys + 2 * values + 2 * heads) + kernel * (2 * keys + values) +
              4 * heads * value * value + hidden * values);
}

}  // namespace

double model_flops_per_token(const ModelConfig& config, int64_t length) {
  auto heads = static_cast<double>(config.num_attention_heads),
       channels = static_cast<double>(config.kv_channels);
  auto hidden = static_cast<double>(config.hidden_size);
  double head = 2 * hidden * static_cast<double>(config.vocab_size), layers = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const ModelConfig own = of_layer(config, layer);
    const double groups = own.num_query_groups ? static_cast<double>(own.num_query_groups) : heads,
                 ffn = static_cast<double>(own.ffn_hidden_size);
    switch (mixer_kind(config, layer)) {
      case MixerKind::attention:
      case MixerKind::latent_attention:
        layers += 2 * hidden * (heads + 2 * groups) * channels + 2 * heads * channels * hidden +
                  2 * heads * channels * static_cast<double>(length);
        break;
      case MixerKind::mamba:
        layers += mamba_flops(config);
        break;
      case MixerKind::delta_net:
        layers += delta_net_flops(config);
        break;
      case MixerKind::none:
        break;
    }
    double width = 0,
           latent_width = 0;  // of the MLPs that a token passes, in the model's space or a smaller one
    switch (feed_forward_kind(config, layer)) {
      case FeedForwardKind::mlp:
        width = ffn;
        break;
      case FeedForwardKind::experts:
        width = static_cast<double>(config.moe_shared_expert_intermediate_size);
        (config.moe_latent_size ? latent_width : width) +=
            (config.moe_ffn_hidden_size ? static_cast<double>(config.moe_ffn_hidden_size) : ffn) *
            static_cast<double>(config.moe_router_topk);
        layers += 4 * hidden * static_cast<double>(config.moe_latent_size);
        break;
      case FeedForwardKind::none:
        break;
    }
    layers += 2 * (hidden * width + static_cast<double>(config.moe_latent_size) * latent_width) *
              (config.gated_linear_unit ? 3 : 2);
  }
  return 3 * (layers + head);
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = 0;
  whole_model(config)->visit([&](Parameter& parameter) { count += parameter.shard.global_shape.numel(); });
  return count;
}

}  // namespace megatron
