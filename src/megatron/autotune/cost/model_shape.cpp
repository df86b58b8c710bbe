#include "megatron/autotune/cost/model_shape.h"

#include <fmt/core.h>

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

int64_t integer(const Json& entry, std::string_view key, int64_t missing) {
  const Json* value = entry.find(key);
  if (value == nullptr || value->is_null()) return missing;
  const int64_t number = value->as_int();
  if (number < 0 || number > 1'000'000'000)
    throw ConfigError(fmt::format("{} is {}, must be 0 to 1e9", key, number));
  return number;
}

double share(double count, int64_t layers) { return layers > 0 ? count / static_cast<double>(layers) : 0; }

}  // namespace

double ModelShape::attention_share() const {
  return attention_layers < 0 ? 1 : share(static_cast<double>(attention_layers), layers);
}
double ModelShape::mlp_share() const {
  if (attention_layers >= 0)
    return share(static_cast<double>(layers - attention_layers - mamba_layers - moe_layers), layers);
  return share(static_cast<double>(layers - moe_layers), layers);
}
double ModelShape::moe_share() const { return share(static_cast<double>(moe_layers), layers); }
double ModelShape::mamba_share() const { return share(static_cast<double>(mamba_layers), layers); }

double ModelShape::attention_params() const {
  if (!latent())
    return double(hidden) * head_dim * (heads + 2 * kv_heads) + double(heads) * head_dim * hidden;
  const double queries =
      q_lora > 0 ? double(hidden) * q_lora + q_lora * query_width() : hidden * query_width();
  return queries + double(hidden) * (kv_lora + rope) + double(kv_lora) * heads * (nope + v_dim) +
         value_width() * hidden;
}

double ModelShape::mamba_params() const {
  const double inner = double(mamba_heads) * mamba_head_dim;
  return hidden * (2 * inner + 2.0 * mamba_groups * mamba_state + mamba_heads) + inner * hidden;
}

double ModelShape::params() const {
  const double layer =
      attention_share() * attention_params() + mlp_share() * mlp_params() + mamba_share() * mamba_params() +
      moe_share() * (double(experts) * (expert_params() + hidden) + shared_params()) + 2.0 * hidden;
  return layers * layer + mtp * (layer + 2.0 * hidden * hidden) + double(hidden) * vocab * (tied ? 1 : 2);
}

double ModelShape::active_params() const {
  const double layer =
      attention_share() * attention_params() + mlp_share() * mlp_params() + mamba_share() * mamba_params() +
      moe_share() * (double(topk) * expert_params() + double(experts) * hidden + shared_params());
  return (layers + mtp) * layer + mtp * 2.0 * hidden * hidden;
}

double ModelShape::mean_context(int64_t seq) const {
  const double causal = static_cast<double>(seq) / 2;
  const double total =
      attention_layers < 0 ? static_cast<double>(layers) : static_cast<double>(attention_layers);
  if (window <= 0 || total <= 0) return causal;
  const double windowed = std::min<double>(causal, static_cast<double>(window));
  return (window_layers * windowed + (total - window_layers) * causal) / total;
}

double ModelShape::flops_per_token(int64_t seq) const {
  const double attention =
      2 * mean_context(seq) * (query_width() + value_width()) * attention_share() * (layers + mtp);
  // The state of a Mamba layer is read and written once a token.
  const double state = 6.0 * mamba_heads * mamba_head_dim * mamba_state * mamba_layers;
  return 3 * (2 * active_params() + attention + state) + 6.0 * hidden * vocab * (1 + mtp);
}

ModelShape model_shape(const std::string& name, const Json& entry) {
  ModelShape shape;
  shape.name = name;
  shape.layers = integer(entry, "layers", 0);
  shape.hidden = integer(entry, "hidden", 0);
  shape.heads = integer(entry, "heads", 0);
  shape.kv_heads = integer(entry, "kv_heads", shape.heads);
  shape.head_dim = integer(entry, "head_dim", shape.heads > 0 ? shape.hidden / shape.heads : 0);
  shape.ffn = integer(entry, "ffn", 4 * shape.hidden);
  shape.vocab = integer(entry, "vocab", 0);
  if (const Json* gated = entry.find("gated")) shape.gated = gated->as_bool();
  if (const Json* tied = entry.find("tied")) shape.tied = tied->as_bool();
  shape.experts = integer(entry, "experts", 0);
  shape.topk = integer(entry, "topk", 0);
  shape.moe_ffn = integer(entry, "moe_ffn", 0);
  shape.moe_layers = integer(entry, "moe_layers", 0);
  shape.shared_ffn = integer(entry, "shared_ffn", 0);
  shape.attention_layers = integer(entry, "attention_layers", -1);
  shape.mamba_layers = integer(entry, "mamba_layers", 0);
  shape.window = integer(entry, "sliding_window", 0);
  shape.window_layers = integer(entry, "sliding_layers", 0);
  shape.sinks = name.starts_with("gpt-oss");
  shape.mtp = integer(entry, "mtp", 0);
  if (const Json* mla = entry.find("mla")) {
    shape.q_lora = integer(*mla, "q_lora", 0);
    shape.kv_lora = integer(*mla, "kv_lora", 0);
    shape.nope = integer(*mla, "nope", 0);
    shape.rope = integer(*mla, "rope", 0);
    shape.v_dim = integer(*mla, "v", 0);
    // DeepSeek's routers choose experts of at most four nodes.
    if (name.starts_with("deepseek")) shape.node_limit = 4;
  }
  if (const Json* mamba = entry.find("mamba")) {
    shape.mamba_heads = integer(*mamba, "heads", 0);
    shape.mamba_head_dim = integer(*mamba, "head_dim", 0);
    shape.mamba_state = integer(*mamba, "state", 0);
    shape.mamba_groups = integer(*mamba, "groups", 0);
  }
  if (shape.layers <= 0 || shape.hidden <= 0 || shape.vocab <= 0)
    throw ConfigError("model " + name + ": layers, hidden and vocab must be positive");
  return shape;
}

ModelShape model_shape(const ModelConfig& config) {
  ModelShape shape;
  shape.name = "model";
  shape.layers = config.num_layers;
  shape.hidden = config.hidden_size;
  shape.heads = config.num_attention_heads;
  shape.kv_heads = config.num_query_groups > 0 ? config.num_query_groups : shape.heads;
  shape.head_dim =
      config.kv_channels > 0 ? config.kv_channels : shape.hidden / std::max<int64_t>(1, shape.heads);
  shape.ffn = config.ffn_hidden_size;
  shape.vocab = config.vocab_size;
  shape.gated = config.gated_linear_unit;
  shape.tied = config.share_embeddings_and_output_weights;
  shape.sinks = config.softmax_type != SoftmaxType::vanilla;
  shape.mtp = config.mtp_num_layers;
  if (config.multi_latent_attention) {
    shape.q_lora = config.q_lora_rank.value_or(0);
    shape.kv_lora = config.kv_lora_rank;
    shape.nope = config.qk_head_dim;
    shape.rope = config.qk_pos_emb_head_dim;
    shape.v_dim = config.v_head_dim;
  }
  if (!config.window_size.empty()) {
    shape.window = std::max<int64_t>(0, config.window_size[0]);
    shape.window_layers = shape.layers;
    if (config.window_attn_skip_freq.is_int() && config.window_attn_skip_freq.as_int() > 0)
      shape.window_layers -= shape.layers / config.window_attn_skip_freq.as_int();
    if (config.window_attn_skip_freq.is_array()) {
      shape.window_layers = 0;
      for (const Json& layer : config.window_attn_skip_freq.as_array())
        shape.window_layers += layer.is_int() && layer.as_int() != 0;
    }
  }
  if (config.num_moe_experts > 0) {
    shape.experts = config.num_moe_experts;
    shape.topk = config.moe_router_topk;
    shape.moe_ffn = config.moe_ffn_hidden_size;
    shape.shared_ffn = config.moe_shared_expert_intermediate_size;
    shape.moe_layers = shape.layers;
    const Json& every = config.moe_layer_freq;
    if (every.is_int() && every.as_int() > 0)
      shape.moe_layers = (shape.layers + every.as_int() - 1) / every.as_int();
    if (every.is_array()) {
      shape.moe_layers = 0;
      for (const Json& layer : every.as_array()) shape.moe_layers += layer.is_int() && layer.as_int() != 0;
    }
    if (shape.moe_layers < shape.layers)
      for (int64_t layer = 0; layer < shape.layers; ++layer) {
        const bool experts = every.is_array()
                                 ? static_cast<size_t>(layer) < every.size() &&
                                       every[static_cast<size_t>(layer)].is_int() &&
                                       every[static_cast<size_t>(layer)].as_int() != 0
                                 : every.is_int() && every.as_int() > 0 && layer % every.as_int() == 0;
        shape.kinds.push_back(experts ? LayerType::moe : LayerType::dense);
      }
  }
  if (config.is_hybrid_model && !config.hybrid_layer_pattern.empty()) {
    const auto count = [&](std::string_view symbols) {
      return static_cast<int64_t>(
          std::count_if(config.hybrid_layer_pattern.begin(), config.hybrid_layer_pattern.end(),
                        [&](char c) { return symbols.find(c) != std::string_view::npos; }));
    };
    shape.attention_layers = count("*+");
    shape.mamba_layers = count("MG");
    shape.moe_layers = count("E");
    shape.kinds.clear();
    for (const char symbol : config.hybrid_layer_pattern) {
      const bool attends = symbol == '*' || symbol == '+', recurs = symbol == 'M' || symbol == 'G';
      if (!attends && !recurs && symbol != 'E' && symbol != '-') continue;
      shape.kinds.push_back(attends         ? LayerType::attention
                            : recurs        ? LayerType::mamba
                            : symbol == 'E' ? LayerType::moe
                                            : LayerType::mlp);
    }
    if (shape.kinds.size() != static_cast<size_t>(shape.layers)) shape.kinds.clear();
    shape.mamba_heads = config.mamba_num_heads;
    shape.mamba_head_dim = config.mamba_head_dim;
    shape.mamba_state = config.mamba_state_dim;
    shape.mamba_groups = config.mamba_num_groups;
  }
  if (shape.layers <= 0 || shape.hidden <= 0 || shape.vocab <= 0)
    throw ConfigError(
        "autotune: the model has no num_layers, hidden_size or vocab_size; give --hf DIR or --num-layers, "
        "--hidden-size, "
        "--num-attention-heads and --vocab-size");
  return shape;
}

}  // namespace megatron::autotune
