#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/config/schema/model_config.h"

namespace megatron::autotune {

// The kind of a layer, where a model has several; average stands for all.
enum class LayerType : uint8_t { average, dense, moe, attention, mamba, mlp };

// Dimensions of a decoder, as far as time and memory depend on them.
struct ModelShape {
  std::string name;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  bool gated = true, tied = false;
  // Mixture of experts.
  int64_t experts = 0, topk = 0, moe_ffn = 0, moe_layers = 0, shared_ffn = 0, node_limit = 0;
  // Latent attention; q_lora 0 with kv_lora set: queries are not compressed.
  int64_t q_lora = 0, kv_lora = 0, nope = 0, rope = 0, v_dim = 0;
  // Hybrids: a layer is one block. attention_layers < 0: every layer has attention and an MLP.
  int64_t attention_layers = -1, mamba_layers = 0, mamba_heads = 0, mamba_head_dim = 0, mamba_state = 0,
          mamba_groups = 0;
  int64_t window = 0, window_layers = 0;
  bool sinks = false;  // attention sinks, which not every fused attention has
  int64_t mtp = 0;
  std::vector<LayerType> kinds;  // of each layer, where they differ

  bool moe() const { return experts > 0; }
  bool latent() const { return kv_lora > 0; }

  // How many of each block a layer holds on average.
  double attention_share() const;
  double mlp_share() const;
  double moe_share() const;
  double mamba_share() const;

  // Parameters of one block, over all ranks.
  double attention_params() const;
  double mlp_params() const { return (gated ? 3.0 : 2.0) * hidden * ffn; }
  double expert_params() const { return (gated ? 3.0 : 2.0) * hidden * moe_ffn; }
  double shared_params() const { return (gated ? 3.0 : 2.0) * hidden * shared_ffn; }
  double mamba_params() const;
  double params() const;         // of the whole model
  double active_params() const;  // that one token meets, without embedding and head

  // Query and key width, value width of all heads together.
  double query_width() const { return double(heads) * (latent() ? nope + rope : head_dim); }
  double value_width() const { return double(heads) * (latent() ? v_dim : head_dim); }
  // Keys that a token attends to on average, over all attention layers.
  double mean_context(int64_t seq) const;

  // Model FLOPs of a token in training, causal attention counted half.
  double flops_per_token(int64_t seq) const;
};

// From an entry of `models` in a table of published figures.
ModelShape model_shape(const std::string& name, const Json& entry);
// From a resolved configuration.
ModelShape model_shape(const ModelConfig& config);

}  // namespace megatron::autotune
