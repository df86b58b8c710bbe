#include <cmath>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/bridge/families/families.h"
#include "megatron/bridge/families/mixtures.h"

// Models whose layers are not all attention: Mamba-2, Nemotron-H, Qwen3-Next.
namespace megatron {
namespace {

using enum WeightLayout;

// JSON has no infinity: transformers writes an object instead.
double number(const Json& value) {
  if (!value.is_object()) return value.as_double();
  const std::string text = value.at("__float__").as_string();
  const double infinity = std::numeric_limits<double>::infinity();
  return text == "Infinity" ? infinity : text == "-Infinity" ? -infinity : std::nan("");
}

// What all of them share. A model without attention still has heads for what counts by them.
ModelConfig hybrid_config(const HfSource& source, const std::string& pattern) {
  const HfConfig& hf = source.config;
  ModelConfig model;
  model.is_hybrid_model = true;
  model.hybrid_layer_pattern = pattern;
  model.num_layers = static_cast<int64_t>(pattern.size());
  model.hidden_size = hf.integer({"hidden_size"});
  model.mamba_num_heads = hf.integer({"mamba_num_heads", "num_heads"});
  model.mamba_head_dim = hf.integer({"mamba_head_dim", "head_dim"});
  model.mamba_num_groups = hf.size({"n_groups"}, 8);
  model.mamba_state_dim = hf.size({"ssm_state_size", "state_size"}, 128);
  model.mamba_conv_kernel = hf.size({"conv_kernel"}, 4);
  model.mamba_chunk_size = hf.size({"chunk_size"}, 256);
  model.mamba_conv_bias = hf.flag("use_conv_bias", true);
  model.mamba_proj_bias = hf.flag("use_bias");
  if (const std::string act = hf.text({"mamba_hidden_act", "hidden_act"}, "silu");
      read_activation(act) != Activation::silu)
    throw ConfigError(fmt::format("config.json: Mamba with the activation '{}' is not built; silu is", act));
  model.num_attention_heads = hf.size({"num_attention_heads"}, model.mamba_num_heads);
  model.num_query_groups = hf.size({"num_key_value_heads"}, model.num_attention_heads);
  model.group_query_attention = model.num_query_groups != model.num_attention_heads;
  model.kv_channels = hf.size({"head_dim"}, model.hidden_size / model.num_attention_heads);
  model.ffn_hidden_size = hf.size({"intermediate_size"}, 4 * model.hidden_size);
  model.vocab_size = hf.integer({"vocab_size"});
  fit_vocabulary(model);
  model.max_position_embeddings = model.seq_length = hf.size({"max_position_embeddings"}, 2048);
  model.normalization = Normalization::rms_norm;
  model.layernorm_epsilon = hf.real({"layer_norm_epsilon"}, 1e-5);
  model.position_embedding_type = PositionEmbedding::none;
  model.add_bias_linear = false;
  model.attention_dropout = hf.real({"attention_dropout"}, 0);
  model.hidden_dropout = hf.real({"hidden_dropout"}, 0);
  model.init_method_std = hf.real({"initializer_range"}, 0.02);
  model.share_embeddings_and_output_weights =
      hf.flag("tie_word_embeddings", !source.has_tensor("lm_head.weight", true));
  return model;
}

ModelConfig mamba2(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model =
      hybrid_config(source, std::string(static_cast<size_t>(hf.layers({"num_hidden_layers"})), 'M'));
  model.mamba_norm_full_width = true;
  if (hf.has("time_step_limit")) {
    const std::vector<Json>& limits = hf.list("time_step_limit", 2);
    model.mamba_time_step_min = number(limits[0]);
    if (const double most = number(limits[1]); std::isfinite(most)) model.mamba_time_step_max = most;
  }
  return model;
}

// One symbol per layer, as the file writes it or from its list of names.
std::string nemotron_pattern(const HfConfig& hf) {
  if (hf.has("hybrid_override_pattern")) return hf.text({"hybrid_override_pattern"}, "");
  if (!hf.has("layers_block_type"))
    throw ConfigError(
        "config.json: neither hybrid_override_pattern nor layers_block_type says what layers it has");
  std::string pattern;
  for (const Json& entry : hf.list("layers_block_type")) {
    const std::string name = entry.as_string();
    if (name == "linear_attention" || name == "mamba")
      pattern += 'M';
    else if (name == "full_attention" || name == "attention")
      pattern += '*';
    else if (name == "moe")
      pattern += 'E';
    else if (name == "mlp")
      pattern += '-';
    else
      throw ConfigError(
          fmt::format("config.json: layers_block_type has '{}', which is not known here", name));
  }
  return pattern;
}

void read_experts(const HfConfig& hf, ModelConfig& model) {
  model.num_moe_experts = hf.integer({"n_routed_experts"});
  model.moe_router_topk = hf.integer({"num_experts_per_tok"});
  model.moe_ffn_hidden_size = hf.integer({"moe_intermediate_size"});
  model.moe_shared_expert_intermediate_size = hf.integer({"moe_shared_expert_intermediate_size"}, 0);
  read_sigmoid_router(hf, model);
  model.moe_router_dtype = RouterDType::fp32;
  model.moe_router_topk_scaling_factor = hf.real({"routed_scaling_factor"}, 1);
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  hf.pass_over({"topk_group"});  // of one group
  if (const int64_t groups = hf.integer({"n_group"}, 1); groups > 1) {
    model.moe_router_num_groups = groups;
    model.moe_router_group_topk = hf.integer({"topk_group"});
  }
  model.moe_latent_size = hf.integer({"moe_latent_size"}, 0);
}

ModelConfig nemotron_h(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = hybrid_config(source, nemotron_pattern(hf));
  model.mamba_time_step_min = hf.real({"time_step_min"}, 0.001);  // as over whole sequences
  hf.pass_over({"time_step_limit", "n_shared_experts"});  // sizes of shared experts say how many there are
  hf.expect("num_nextn_predict_layers", 0, "the layers");
  model.activation_func = read_activation(hf.text({"mlp_hidden_act"}, "relu2"));
  model.add_qkv_bias = hf.flag("attention_bias");
  model.add_attention_output_bias = hf.flag("attention_bias");
  model.add_mlp_bias = hf.flag("mlp_bias");
  if (model.hybrid_layer_pattern.find('E') != std::string::npos) read_experts(hf, model);
  return model;
}

// 1 for each layer that is a delta net: as the file lists them, or all but every fourth.
Json delta_layers(const HfConfig& hf, int64_t layers) {
  const std::vector<Json> types = hf.has("layer_types") ? hf.list("layer_types", layers) : Json::Array{};
  const int64_t interval = hf.size({"full_attention_interval"}, 4);
  Json list = Json::array();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool linear = types.empty() ? (layer + 1) % interval != 0
                                      : types[static_cast<size_t>(layer)].as_string() == "linear_attention";
    list.push_back(linear ? 1 : 0);
  }
  return list;
}

ModelConfig qwen3_next(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = mixture_config(source);
  model.moe_router_pre_softmax = !hf.flag("norm_topk_prob", true);
  model.moe_shared_expert_intermediate_size = hf.integer({"shared_expert_intermediate_size"});
  model.moe_shared_expert_gate = true;
  read_qwen_layers(hf, model);
  model.rotary_percent = 0.25;
  read_rope(hf.rope(), hf, 1e4, model);
  model.layernorm_zero_centered_gamma = true;
  model.qk_layernorm = true;
  model.attention_output_gate = true;
  model.experimental_attention_variant = AttentionVariant::gated_delta_net;
  model.linear_attention_freq = delta_layers(hf, model.num_layers);
  model.linear_conv_kernel_dim = hf.size({"linear_conv_kernel_dim"}, 4);
  model.linear_key_head_dim = hf.size({"linear_key_head_dim"}, 128);
  model.linear_value_head_dim = hf.size({"linear_value_head_dim"}, 128);
  model.linear_num_key_heads = hf.size({"linear_num_key_heads"}, 16);
  model.linear_num_value_heads = hf.size({"linear_num_value_heads"}, 32);
  read_qwen_mtp(source, model);
  return model;
}

std::vector<WeightRule> qwen3_next_rules() {
  return std::vector<WeightRule>{
             {delta_in,
              "decoder.layers.*.self_attention.in_proj.weight",
              {"model.layers.*.linear_attn.in_proj_qkvz.weight",
               "model.layers.*.linear_attn.in_proj_ba.weight"}},
             {same,
              "decoder.layers.*.self_attention.conv1d.weight",
              {"model.layers.*.linear_attn.conv1d.weight"}},
             {same, "decoder.layers.*.self_attention.A_log", {"model.layers.*.linear_attn.A_log"}},
             {same, "decoder.layers.*.self_attention.dt_bias", {"model.layers.*.linear_attn.dt_bias"}},
             {same,
              "decoder.layers.*.self_attention.out_norm.weight",
              {"model.layers.*.linear_attn.norm.weight"}},
             {same,
              "decoder.layers.*.self_attention.out_proj.weight",
              {"model.layers.*.linear_attn.out_proj.weight"}}} +
         usual_expert_rules() + qwen_shared_expert_rules() + qk_norm_rules() + embedding_rules() +
         attention_rules() + mlp_rules();
}

std::vector<WeightRule> mamba_rules() {
  return {{same, "embedding.word_embeddings.weight", {"backbone.embeddings.weight"}},
          {same, "decoder.final_layernorm.weight", {"backbone.norm_f.weight"}},
          {same, "output_layer.weight", {"lm_head.weight"}},
          {same, "decoder.layers.*.norm.weight", {"backbone.layers.*.norm.weight"}},
          {same, "decoder.layers.*.mixer.in_proj.weight", {"backbone.layers.*.mixer.in_proj.weight"}},
          {same, "decoder.layers.*.mixer.in_proj.bias", {"backbone.layers.*.mixer.in_proj.bias"}},
          {same, "decoder.layers.*.mixer.conv1d.weight", {"backbone.layers.*.mixer.conv1d.weight"}},
          {same, "decoder.layers.*.mixer.conv1d.bias", {"backbone.layers.*.mixer.conv1d.bias"}},
          {same, "decoder.layers.*.mixer.A_log", {"backbone.layers.*.mixer.A_log"}},
          {same, "decoder.layers.*.mixer.D", {"backbone.layers.*.mixer.D"}},
          {same, "decoder.layers.*.mixer.dt_bias", {"backbone.layers.*.mixer.dt_bias"}},
          {same, "decoder.layers.*.mixer.norm.weight", {"backbone.layers.*.mixer.norm.weight"}},
          {same, "decoder.layers.*.mixer.out_proj.weight", {"backbone.layers.*.mixer.out_proj.weight"}},
          {same, "decoder.layers.*.mixer.out_proj.bias", {"backbone.layers.*.mixer.out_proj.bias"}}};
}

std::vector<WeightRule> nemotron_h_rules() {
  return mamba_rules() +
         std::vector<WeightRule>{
             {same, "decoder.layers.*.input_layernorm.weight", {"backbone.layers.*.norm.weight"}},
             {same, "decoder.layers.*.pre_mlp_layernorm.weight", {"backbone.layers.*.norm.weight"}},
             {qkv,
              "decoder.layers.*.self_attention.linear_qkv.weight",
              {"backbone.layers.*.mixer.q_proj.weight", "backbone.layers.*.mixer.k_proj.weight",
               "backbone.layers.*.mixer.v_proj.weight"}},
             {qkv,
              "decoder.layers.*.self_attention.linear_qkv.bias",
              {"backbone.layers.*.mixer.q_proj.bias", "backbone.layers.*.mixer.k_proj.bias",
               "backbone.layers.*.mixer.v_proj.bias"}},
             {same,
              "decoder.layers.*.self_attention.linear_proj.weight",
              {"backbone.layers.*.mixer.o_proj.weight"}},
             {same,
              "decoder.layers.*.self_attention.linear_proj.bias",
              {"backbone.layers.*.mixer.o_proj.bias"}},
             {same, "decoder.layers.*.mlp.linear_fc1.weight", {"backbone.layers.*.mixer.up_proj.weight"}},
             {same, "decoder.layers.*.mlp.linear_fc1.bias", {"backbone.layers.*.mixer.up_proj.bias"}},
             {same, "decoder.layers.*.mlp.linear_fc2.weight", {"backbone.layers.*.mixer.down_proj.weight"}},
             {same, "decoder.layers.*.mlp.linear_fc2.bias", {"backbone.layers.*.mixer.down_proj.bias"}},
             {same, "decoder.layers.*.mlp.router.weight", {"backbone.layers.*.mixer.gate.weight"}},
             {same,
              "decoder.layers.*.mlp.router.expert_bias",
              {"backbone.layers.*.mixer.gate.e_score_correction_bias"}},
             {experts,
              "decoder.layers.*.mlp.experts.experts.linear_fc1.weight",
              {"backbone.layers.*.mixer.experts.#.up_proj.weight"}},
             {experts,
              "decoder.layers.*.mlp.experts.experts.linear_fc2.weight",
              {"backbone.layers.*.mixer.experts.#.down_proj.weight"}},
             {same,
              "decoder.layers.*.mlp.fc1_latent_proj.weight",
              {"backbone.layers.*.mixer.fc1_latent_proj.weight"}},
             {same,
              "decoder.layers.*.mlp.fc1_latent_proj.bias",
              {"backbone.layers.*.mixer.fc1_latent_proj.bias"}},
             {same,
              "decoder.layers.*.mlp.fc2_latent_proj.weight",
              {"backbone.layers.*.mixer.fc2_latent_proj.weight"}},
             {same,
              "decoder.layers.*.mlp.fc2_latent_proj.bias",
              {"backbone.layers.*.mixer.fc2_latent_proj.bias"}},
             {same,
              "decoder.layers.*.mlp.shared_experts.linear_fc1.weight",
              {"backbone.layers.*.mixer.shared_experts.up_proj.weight"}},
             {same,
              "decoder.layers.*.mlp.shared_experts.linear_fc2.weight",
              {"backbone.layers.*.mixer.shared_experts.down_proj.weight"}}};
}

}  // namespace

std::vector<Family> hybrid_families() {
  return {{{"Mamba2ForCausalLM"}, mamba2, mamba_rules()},
          {{"NemotronHForCausalLM"}, nemotron_h, nemotron_h_rules(), nullptr, {"mtp."}},
          {{"Qwen3NextForCausalLM"}, qwen3_next, qwen_mtp_rules(qwen3_next_rules()) + qwen3_next_rules()}};
}

}  // namespace megatron
