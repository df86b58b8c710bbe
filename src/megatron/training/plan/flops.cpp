#include "megatron/training/plan/flops.h"

#include <algorithm>

#include "megatron/config/resolve/hybrid_pattern.h"
#include "megatron/config/resolve/layer_blocks.h"
#include "megatron/models/vision_config.h"
#include "megatron/models/whole_model.h"
#include "megatron/transformer/embedding.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

// Multiply-adds of one layer's forward pass; a training step makes six operations of each.
struct LayerWork {
  double per_token = 0;   // GEMMs and states
  double per_square = 0;  // causal attention, per squared length

  LayerWork& operator+=(const LayerWork& other) {
    per_token += other.per_token;
    per_square += other.per_square;
    return *this;
  }
};

double number(int64_t value) { return static_cast<double>(value); }

LayerWork attention_work(const ModelConfig& config, int64_t query_groups) {
  const double hidden = number(config.hidden_size), head_dim = number(config.kv_channels),
               queries = head_dim * number(config.num_attention_heads),
               keys = query_groups ? head_dim * number(query_groups) : queries,
               gate = config.attention_output_gate && !config.is_hybrid_model ? queries : 0;
  return {hidden * (queries + 2 * keys + gate) + queries * hidden, queries};
}

LayerWork latent_attention_work(const ModelConfig& config) {
  const double hidden = number(config.hidden_size), heads = number(config.num_attention_heads),
               rotated = number(config.qk_pos_emb_head_dim), value = number(config.v_head_dim),
               query = number(config.qk_head_dim) + rotated, kv_rank = number(config.kv_lora_rank);
  const double queries = config.q_lora_rank ? number(*config.q_lora_rank) * (hidden + heads * query + 1)
                                            : hidden * heads * query;
  const double keys = kv_rank * (hidden + heads * (number(config.qk_head_dim) + value) + 1);
  return {queries + keys + hidden * rotated + heads * value * hidden, heads * (query + value) / 2};
}

LayerWork delta_net_work(const ModelConfig& config) {
  const double hidden = number(config.hidden_size), heads = number(config.linear_num_value_heads),
               value = number(config.linear_value_head_dim), values = heads * value,
               keys = number(config.linear_num_key_heads * config.linear_key_head_dim),
               conv = number(config.linear_conv_kernel_dim);
  const double gates = config.gates_channels() ? 2 * keys + values : 2 * heads;
  return {hidden * (2 * keys + 2 * values + gates) + conv * (2 * keys + values) + 4 * heads * value * value +
          hidden * values};
}

// The inner width counts as twice the hidden size, whatever it is.
LayerWork mamba_work(const ModelConfig& config) {
  const double hidden = number(config.hidden_size), inner = 2 * hidden,
               states = number(config.mamba_state_dim), groups = number(config.mamba_num_groups),
               heads = config.mamba_num_heads ? number(config.mamba_num_heads)
                                              : inner / number(config.mamba_head_dim);
  return {hidden * (2 * inner + 2 * groups * states + heads) + 3.5 * inner * states + inner * hidden};
}

LayerWork delta_product_work(const ModelConfig& config) {
  const double hidden = number(config.hidden_size), heads = number(config.mamba_num_heads),
               head = number(config.mamba_head_dim), states = number(config.mamba_state_dim),
               inner = heads * head, shared = number(config.mamba_num_groups) * states,
               times = number(config.gdp_num_householder);
  return {hidden * (1 + times) * (inner + shared + heads) +
          number(config.mamba_conv_kernel) * (inner * times + shared * (1 + times)) +
          (2 * times + 1.5) * inner * states + inner * hidden};
}

double matrices(const ModelConfig& config) { return config.gated_linear_unit ? 3 : 2; }

LayerWork mlp_work(const ModelConfig& config, int64_t width) {
  return {matrices(config) * number(config.hidden_size) * number(width)};
}

LayerWork expert_work(const ModelConfig& config) {
  const double hidden = number(config.hidden_size), latent = number(config.moe_latent_size),
               width =
                   number(config.moe_ffn_hidden_size ? config.moe_ffn_hidden_size : config.ffn_hidden_size);
  const double routed =
      matrices(config) * (latent > 0 ? latent : hidden) * width * number(config.moe_router_topk);
  return {routed + 2 * hidden * latent +
          matrices(config) * hidden * number(config.moe_shared_expert_intermediate_size)};
}

LayerWork layer_work(const ModelConfig& config, int64_t layer) {
  LayerWork work;
  const LayerBlock block = layer_block(config, layer);
  switch (mixer_kind(config, layer)) {
    case MixerKind::attention:
      work += attention_work(config, block.query_groups);
      break;
    case MixerKind::latent_attention:
      if (!config.is_hybrid_model) work += latent_attention_work(config);
      break;
    case MixerKind::mamba:
      work += config.gated_delta_product ? delta_product_work(config) : mamba_work(config);
      break;
    case MixerKind::delta_net:
      work += delta_net_work(config);
      break;
    case MixerKind::none:
      break;
  }
  switch (feed_forward_kind(config, layer)) {
    case FeedForwardKind::mlp:
      work += mlp_work(config, block.ffn_hidden_size);
      break;
    case FeedForwardKind::experts:
      work += expert_work(config);
      break;
    case FeedForwardKind::none:
      break;
  }
  return work;
}

// The layers that predict further tokens: as the last layer, with full attention and a projection of
// hidden states beside embeddings. A hybrid model's follow their own pattern.
LayerWork mtp_work(const ModelConfig& config) {
  LayerWork work;
  if (config.is_hybrid_model) {
    const HybridPattern pattern = parse_hybrid_pattern(config.hybrid_layer_pattern);
    ModelConfig own = config;
    own.hybrid_layer_pattern = pattern.mtp_layers;
    for (int64_t depth = 0; depth < pattern.mtp_depths; ++depth)
      for (size_t layer = 0; layer < pattern.mtp_layers.size(); ++layer)
        work += layer_work(own, static_cast<int64_t>(layer));
    return work;
  }
  const double hidden = number(config.hidden_size);
  const LayerBlock block = layer_block(config, config.num_layers - 1);
  for (int64_t depth = 0; depth < config.mtp_num_layers; ++depth) {
    work += config.multi_latent_attention ? latent_attention_work(config)
                                          : attention_work(config, block.query_groups);
    work += has_experts(config, config.num_layers - 1) ? expert_work(config)
                                                       : mlp_work(config, block.ffn_hidden_size);
    work += {3 * hidden + 2 * hidden * hidden};
  }
  return work;
}

// An encoder and its decoder, per token of the encoder: there are `share` decoder tokens for each. Cross
// attention makes queries of the decoder's tokens, keys and values of the encoder's.
LayerWork encoder_decoder_work(const ModelConfig& config, double padded_vocab_size) {
  const double encoder = number(config.encoder_num_layers), decoder = number(config.decoder_num_layers),
               share = number(config.decoder_seq_length) /
                       number(std::max<int64_t>(1, config.encoder_seq_length)),
               width = number(config.hidden_size),
               cross = width * number(config.kv_channels * config.num_attention_heads);
  const LayerWork attention = attention_work(config, config.num_query_groups),
                  mlp = mlp_work(config, config.ffn_hidden_size);
  const double layer = attention.per_token + mlp.per_token, square = attention.per_square;
  return {encoder * layer + decoder * (share * (layer + 2 * cross) + 2 * cross) +
              share * width * padded_vocab_size,
          2 * encoder * square + decoder * (share * share + 2 * share) * square};
}

// The projector's multiply-adds for one row that stands for an image's token.
double projector_work(const VisionConfig& config) {
  const double width = number(config.vision_hidden_size), out = number(config.vision_output_size);
  if (config.vision_tower == VisionTowerKind::siglip) return width * out;
  const double merged =
      config.is_qwen() ? width * number(config.vision_spatial_merge_size * config.vision_spatial_merge_size)
                       : width * (config.vision_pixel_shuffle ? 4 : 1);
  const double inner = config.is_qwen() ? merged : number(config.vision_projector_size);
  return inner * (merged + out);
}

}  // namespace

double tower_flops(const ModelConfig& config, std::span<const PatchGrid> grids) {
  if (!config.has_tower() || grids.empty()) return 0;
  const ModelConfig own = tower_config(config);
  const int64_t side = config.vision_patch_size,
                frames = config.is_qwen() ? config.vision_temporal_patch_size : 1;
  const double pixels = number(config.vision_in_channels * frames * side * side);
  LayerWork layer = attention_work(own, own.num_query_groups);
  layer += mlp_work(own, own.ffn_hidden_size);
  const bool windows = config.vision_tower == VisionTowerKind::qwen2_5 && config.vision_window_size > 0;
  const double layers = number(own.num_layers),
               whole = windows ? number(std::ssize(config.vision_full_attention_layers)) : layers,
               across = number(config.vision_window_size / side), window = across * across;
  double tower = 0, projector = 0;
  for (const PatchGrid& grid : grids) {
    const bool clip = config.vision_tower == VisionTowerKind::clip;  // has a class token beside its patches
    const double patches = number(grid.patches()), rows = patches + (clip ? number(grid.frames) : 0),
                 seen = rows / number(grid.frames);  // by each, in its frame
    tower += patches * pixels * number(own.hidden_size) + rows * layers * layer.per_token +
             2 * rows * layer.per_square * (whole * seen + (layers - whole) * std::min(window, seen));
    projector += number(config.image_tokens(grid.patches())) * projector_work(config);
  }
  const double passes = config.freeze_vision_model ? 1 : 3,
               behind = config.freeze_vision_model && config.freeze_vision_projection ? 1 : 3;
  return 2 * (passes * tower + behind * projector);
}

double model_flops(const ModelConfig& config, int64_t padded_vocab_size, double tokens,
                   double squared_lengths) {
  if (is_encoder_decoder(config)) {
    const LayerWork work = encoder_decoder_work(config, number(padded_vocab_size));
    return 6 * (work.per_token * tokens + work.per_square * squared_lengths);
  }
  LayerWork work = mtp_work(config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) work += layer_work(config, layer);
  const double heads = 1 + number(config.mtp_num_layers);
  work += {number(config.hidden_size) * number(padded_vocab_size) * heads};
  return 6 * (work.per_token * tokens + work.per_square * squared_lengths);
}

double model_flops_per_token(const ModelConfig& config, int64_t length, int64_t tensor_parallel) {
  return model_flops(config, padded_vocab_size(config, static_cast<int>(tensor_parallel)), 1, number(length));
}

double step_flops_per_token(const Config& config, const ModelConfig* teacher) {
  const int64_t length = config.model.seq_length, tp = config.parallel.tensor_model_parallel_size;
  const double own = model_flops_per_token(config.model, length, tp);
  return teacher ? own + model_flops_per_token(*teacher, length, tp) / 3 : own;
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = 0;
  whole_model(config)->visit([&](Parameter& parameter) { count += parameter.shard.global_shape.numel(); });
  return count;
}

}  // namespace megatron
