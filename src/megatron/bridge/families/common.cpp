#include "megatron/bridge/families/common.h"

#include "megatron/base/error.h"

namespace megatron {

using enum WeightLayout;

namespace {

std::vector<double> numbers(const HfConfig& config, std::string_view key, int64_t size) {
  std::vector<double> values;
  for (const Json& value : config.list(key, size)) values.push_back(value.as_double());
  return values;
}

}  // namespace

void fit_vocabulary(ModelConfig& model) {
  while (model.vocab_size % model.make_vocab_size_divisible_by != 0) model.make_vocab_size_divisible_by /= 2;
}

ModelConfig decoder_config(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model;
  model.num_layers = hf.layers({"num_hidden_layers"});
  model.hidden_size = hf.integer({"hidden_size"});
  model.ffn_hidden_size = hf.integer({"intermediate_size"});
  model.num_attention_heads = hf.integer({"num_attention_heads"});
  model.num_query_groups = hf.size({"num_key_value_heads"}, model.num_attention_heads);
  model.group_query_attention = model.num_query_groups != model.num_attention_heads;
  model.kv_channels = hf.size({"head_dim"}, model.hidden_size / model.num_attention_heads);
  model.vocab_size = hf.integer({"vocab_size"});
  model.max_position_embeddings = model.seq_length = hf.size({"max_position_embeddings"}, 2048);
  fit_vocabulary(model);

  model.normalization = Normalization::rms_norm;
  model.layernorm_epsilon = hf.real({"rms_norm_eps"}, 1e-6);
  model.position_embedding_type = PositionEmbedding::rope;
  model.activation_func = read_activation(hf.text({"hidden_act", "hidden_activation"}, "silu"));
  model.gated_linear_unit = true;
  model.add_bias_linear = false;
  const bool attention_bias = hf.flag("attention_bias"), mlp_bias = hf.flag("mlp_bias");
  model.add_qkv_bias = source.has_tensor("model.layers.0.self_attn.q_proj.bias", attention_bias);
  model.add_attention_output_bias = source.has_tensor("model.layers.0.self_attn.o_proj.bias", attention_bias);
  model.add_mlp_bias = source.has_tensor("model.layers.0.mlp.down_proj.bias", mlp_bias);
  model.attention_dropout = hf.real({"attention_dropout"}, 0);
  model.hidden_dropout = hf.real({"resid_pdrop"}, 0);  // Phi-3's
  model.init_method_std = hf.real({"initializer_range"}, 0.02);
  // A file may leave the flag out, but then it has no head of its own where the embedding serves.
  model.share_embeddings_and_output_weights =
      hf.flag("tie_word_embeddings", !source.has_tensor("lm_head.weight", true));
  return model;
}

void read_rope(const HfRope& rope, const HfConfig& config, double default_theta, ModelConfig& model) {
  model.rotary_base = rope.theta.value_or(default_theta);
  if (rope.partial_rotary_factor) model.rotary_percent = *rope.partial_rotary_factor;
  const HfConfig scaling(rope.scaling);
  const int64_t original =
      config.size({"original_max_position_embeddings"},
                  scaling.size({"original_max_position_embeddings"}, model.max_position_embeddings));
  if (rope.type == "default") return;
  if (rope.type == "linear") {
    model.seq_len_interpolation_factor = scaling.real({"factor"});
  } else if (rope.type == "llama3") {
    model.rope_scaling = true;
    model.rope_scaling_factor = scaling.real({"factor"}, 8);
    model.rope_scaling_low_freq_factor = scaling.real({"low_freq_factor"}, 1);
    model.rope_scaling_high_freq_factor = scaling.real({"high_freq_factor"}, 4);
    model.rope_scaling_original_max_position_embeddings = original;
  } else if (rope.type == "yarn") {
    model.position_embedding_type = PositionEmbedding::yarn;
    model.yarn_original_max_position_embeddings = original;
    model.yarn_rotary_scaling_factor = scaling.real(
        {"factor"}, static_cast<double>(model.max_position_embeddings) / static_cast<double>(original));
    model.yarn_beta_fast = scaling.real({"beta_fast"}, 32);
    model.yarn_beta_slow = scaling.real({"beta_slow"}, 1);
    if (scaling.has("mscale")) model.yarn_mscale = scaling.real({"mscale"});
    if (scaling.has("mscale_all_dim")) model.yarn_mscale_all_dim = scaling.real({"mscale_all_dim"});
    if (scaling.has("attention_factor")) model.yarn_attention_factor = scaling.real({"attention_factor"});
    model.yarn_correction_range_round_to_int = scaling.flag("truncate", true);
  } else if (rope.type == "longrope" || rope.type == "su") {
    // One for each pair of channels that is rotated.
    const auto rotated = static_cast<int64_t>(static_cast<double>(model.kv_channels) * model.rotary_percent);
    model.longrope_short_factor = numbers(scaling, "short_factor", rotated / 2);
    model.longrope_long_factor = numbers(scaling, "long_factor", rotated / 2);
    model.longrope_original_max_position_embeddings = original;
    model.longrope_scaling_factor = scaling.real(
        {"factor"}, static_cast<double>(model.max_position_embeddings) / static_cast<double>(original));
    if (scaling.has("attention_factor")) model.longrope_attention_factor = scaling.real({"attention_factor"});
  } else if (rope.type == "dynamic") {
    model.dynamic_rope_factor = scaling.real({"factor"});
  } else {
    throw ConfigError(
        fmt::format("config.json: rotary scaling '{}' is not known here; known are default, linear, dynamic, "
                    "llama3, yarn and longrope",
                    rope.type));
  }
}

void read_windows(const HfConfig& config, ModelConfig& model,
                  bool (*by_default)(const HfConfig&, int64_t layer)) {
  const int64_t window = config.integer({"sliding_window"}, 0);
  if (window == 0) return;
  const std::vector<Json> types =
      config.has("layer_types") ? config.list("layer_types", model.num_layers) : Json::Array{};
  Json list = Json::array();
  int64_t windowed = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const bool here = types.empty() ? by_default(config, layer)
                                    : types[static_cast<size_t>(layer)].as_string() == "sliding_attention";
    list.push_back(here ? 1 : 0);
    windowed += here;
  }
  if (windowed == 0) return;
  model.window_size = {window - 1, 0};  // theirs counts the query's own key
  if (windowed < model.num_layers) model.window_attn_skip_freq = list;
}

Activation read_activation(std::string_view name) {
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  if (name == "relu2" || name == "squared_relu") return Activation::squared_relu;
  if (name == "quick_gelu") return Activation::quick_gelu;
  if (name == "sigmoid") return Activation::sigmoid;
  if (name == "tanh") return Activation::tanh;
  throw ConfigError(fmt::format("config.json: activation '{}' is not known here", name));
}

std::vector<WeightRule> operator+(std::vector<WeightRule> a, const std::vector<WeightRule>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<WeightRule> embedding_rules() {
  return {{same, "embedding.word_embeddings.weight", {"model.embed_tokens.weight"}},
          {same, "decoder.final_layernorm.weight", {"model.norm.weight"}},
          {same, "output_layer.weight", {"lm_head.weight"}}};
}

std::vector<WeightRule> attention_rules() {
  return {
      {same, "decoder.layers.*.input_layernorm.weight", {"model.layers.*.input_layernorm.weight"}},
      {qkv,
       "decoder.layers.*.self_attention.linear_qkv.weight",
       {"model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn.k_proj.weight",
        "model.layers.*.self_attn.v_proj.weight"}},
      {qkv,
       "decoder.layers.*.self_attention.linear_qkv.bias",
       {"model.layers.*.self_attn.q_proj.bias", "model.layers.*.self_attn.k_proj.bias",
        "model.layers.*.self_attn.v_proj.bias"}},
      {same,
       "decoder.layers.*.self_attention.linear_proj.weight",
       {"model.layers.*.self_attn.o_proj.weight"}},
      {same, "decoder.layers.*.self_attention.linear_proj.bias", {"model.layers.*.self_attn.o_proj.bias"}}};
}

std::vector<WeightRule> qk_norm_rules() {
  return {{same,
           "decoder.layers.*.self_attention.q_layernorm.weight",
           {"model.layers.*.self_attn.q_norm.weight"}},
          {same,
           "decoder.layers.*.self_attention.k_layernorm.weight",
           {"model.layers.*.self_attn.k_norm.weight"}}};
}

std::vector<WeightRule> mlp_rules() {
  return {
      {same, "decoder.layers.*.pre_mlp_layernorm.weight", {"model.layers.*.post_attention_layernorm.weight"}},
      {gate_up,
       "decoder.layers.*.mlp.linear_fc1.weight",
       {"model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight"}},
      {gate_up,
       "decoder.layers.*.mlp.linear_fc1.bias",
       {"model.layers.*.mlp.gate_proj.bias", "model.layers.*.mlp.up_proj.bias"}},
      {same, "decoder.layers.*.mlp.linear_fc2.weight", {"model.layers.*.mlp.down_proj.weight"}},
      {same, "decoder.layers.*.mlp.linear_fc2.bias", {"model.layers.*.mlp.down_proj.bias"}}};
}

std::vector<WeightRule> qwen_mtp_rules(const std::vector<WeightRule>& rules) {
  constexpr std::string_view ours = "decoder.layers.*.", theirs = "model.layers.*.";
  std::vector<WeightRule> found = {{same, "mtp.layers.0.eh_proj.weight", {"mtp.fc.weight"}},
                                   {same, "mtp.layers.0.enorm.weight", {"mtp.pre_fc_norm_embedding.weight"}},
                                   {same, "mtp.layers.0.hnorm.weight", {"mtp.pre_fc_norm_hidden.weight"}},
                                   {same, "mtp.layers.0.final_layernorm.weight", {"mtp.norm.weight"}}};
  for (WeightRule rule : rules) {
    if (!rule.ours.starts_with(ours)) continue;
    rule.ours.replace(0, ours.size(), "mtp.layers.*.mtp_model_layer.");
    for (std::string& name : rule.theirs) name.replace(0, theirs.size(), "mtp.layers.*.");
    found.push_back(std::move(rule));
  }
  return found;
}

void read_qwen_mtp(const HfSource& source, ModelConfig& model) {
  if (source.has_tensor("mtp.fc.weight", false)) model.mtp_num_layers = 1;
}

std::vector<WeightRule> sandwich_rules(const char* after_attention, const char* before_mlp,
                                       const char* after_mlp) {
  return {{same, "decoder.layers.*.self_attention.linear_proj.post_layernorm.weight", {after_attention}},
          {same, "decoder.layers.*.pre_mlp_layernorm.weight", {before_mlp}},
          {same, "decoder.layers.*.mlp.linear_fc2.post_layernorm.weight", {after_mlp}}};
}

}  // namespace megatron
