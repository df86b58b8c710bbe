#include "megatron/base/error.h"
#include "megatron/bridge/families/families.h"
#include "megatron/bridge/families/mixtures.h"

namespace megatron {
namespace {

using enum WeightLayout;

void set_expert_layers(ModelConfig& model, const std::function<bool(int64_t layer)>& has_experts) {
  Json list = Json::array();
  for (int64_t layer = 0; layer < model.num_layers; ++layer) list.push_back(has_experts(layer) ? 1 : 0);
  model.moe_layer_freq = list;
}

std::vector<WeightRule> router_rules(const char* weight) {
  return {
      {same, "decoder.layers.*.mlp.router.weight", {weight}},
      {same, "decoder.layers.*.mlp.router.expert_bias", {"model.layers.*.mlp.gate.e_score_correction_bias"}}};
}

std::vector<WeightRule> expert_rules(const char* gate, const char* up, const char* down) {
  return {{experts_gate_up, "decoder.layers.*.mlp.experts.experts.linear_fc1.weight", {gate, up}},
          {experts, "decoder.layers.*.mlp.experts.experts.linear_fc2.weight", {down}}};
}

// All experts of a layer in one tensor, gate before up: as transformers 5 has them in memory.
std::vector<WeightRule> stacked_expert_rules() {
  return {{same,
           "decoder.layers.*.mlp.experts.experts.linear_fc1.weight",
           {"model.layers.*.mlp.experts.gate_up_proj"},
           true},
          {same,
           "decoder.layers.*.mlp.experts.experts.linear_fc2.weight",
           {"model.layers.*.mlp.experts.down_proj"},
           true}};
}

std::vector<WeightRule> shared_expert_rules(const char* gate, const char* up, const char* down) {
  return {{gate_up, "decoder.layers.*.mlp.shared_experts.linear_fc1.weight", {gate, up}},
          {same, "decoder.layers.*.mlp.shared_experts.linear_fc2.weight", {down}},
          {same,
           "decoder.layers.*.mlp.shared_experts.gate_weight",
           {"model.layers.*.mlp.shared_expert_gate.weight"}}};
}

}  // namespace

ModelConfig mixture_config(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = decoder_config(source);
  model.num_moe_experts = hf.integer({"num_experts", "num_local_experts", "n_routed_experts"});
  model.moe_router_topk = hf.integer({"num_experts_per_tok"});
  model.moe_ffn_hidden_size = hf.integer({"moe_intermediate_size", "intermediate_size"});
  model.moe_router_pre_softmax = !hf.flag("norm_topk_prob");
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  if (hf.flag("output_router_logits")) model.moe_aux_loss_coeff = {hf.real({"router_aux_loss_coef"}, 0)};
  return model;
}

void read_qwen_layers(const HfConfig& hf, ModelConfig& model) {
  const std::vector<Json> dense = hf.has("mlp_only_layers") ? hf.list("mlp_only_layers") : Json::Array{};
  const int64_t step = hf.size({"decoder_sparse_step"}, 1);
  set_expert_layers(model, [&](int64_t layer) {
    for (const Json& own : dense)
      if (own.as_int() == layer) return false;
    return (layer + 1) % step == 0;
  });
}

void read_sigmoid_router(const HfConfig& hf, ModelConfig& model) {
  model.moe_router_pre_softmax = false;
  model.moe_router_score_function = RouterScore::sigmoid;
  model.moe_router_enable_expert_bias = true;
  model.moe_router_bias_update_rate = 0;
  model.moe_router_group_score_topk = 2;
  model.moe_router_normalize_topk = hf.flag("norm_topk_prob", true);
  // Megatron-LM's router leaves the probability of an only expert as it is.
  if (model.moe_router_normalize_topk && hf.integer({"num_experts_per_tok"}, 2) == 1)
    throw ConfigError(
        "config.json: norm_topk_prob is true with num_experts_per_tok 1: it makes the weight of a token's "
        "only "
        "expert 1, which is not built; only false is");
}

std::vector<WeightRule> usual_expert_rules() {
  return stacked_expert_rules() + router_rules("model.layers.*.mlp.gate.weight") +
         expert_rules("model.layers.*.mlp.experts.#.gate_proj.weight",
                      "model.layers.*.mlp.experts.#.up_proj.weight",
                      "model.layers.*.mlp.experts.#.down_proj.weight");
}

std::vector<WeightRule> qwen_shared_expert_rules() {
  return shared_expert_rules("model.layers.*.mlp.shared_expert.gate_proj.weight",
                             "model.layers.*.mlp.shared_expert.up_proj.weight",
                             "model.layers.*.mlp.shared_expert.down_proj.weight");
}

namespace {

ModelConfig mixtral(const HfSource& source) {
  ModelConfig model = mixture_config(source);
  model.moe_router_pre_softmax = false;
  read_rope(source.config.rope(), source.config, 1e6, model);
  read_windows(source.config, model, every_layer);
  return model;
}

ModelConfig qwen2_moe(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = mixture_config(source);
  read_rope(hf.rope(), hf, 1e4, model);
  model.add_qkv_bias = source.has_tensor("model.layers.0.self_attn.q_proj.bias", hf.flag("qkv_bias", true));
  model.moe_shared_expert_intermediate_size = hf.integer({"shared_expert_intermediate_size"});
  model.moe_shared_expert_gate = true;
  read_qwen_layers(hf, model);
  hf.pass_over({"sliding_window", "layer_types", "max_window_layers"});  // without windows
  if (hf.flag("use_sliding_window"))
    read_windows(hf, model, [](const HfConfig& config, int64_t layer) {
      return layer % 2 == 0 && layer < config.integer({"max_window_layers"}, 28);
    });
  return model;
}

ModelConfig qwen3_moe(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = mixture_config(source);
  read_rope(hf.rope(), hf, 1e4, model);
  model.qk_layernorm = true;
  read_qwen_layers(hf, model);
  hf.pass_over({"sliding_window", "layer_types", "max_window_layers"});  // without windows
  if (hf.flag("use_sliding_window")) read_windows(hf, model, every_layer);
  return model;
}

ModelConfig olmoe(const HfSource& source) {
  if (source.config.has("clip_qkv"))
    throw ConfigError("config.json: clip_qkv is not built here; models that do not set it can be read");
  ModelConfig model = mixture_config(source);
  read_rope(source.config.rope(), source.config, 1e4, model);
  model.qk_layernorm = model.qk_layernorm_full_width = true;
  return model;
}

void read_groups(const HfConfig& hf, ModelConfig& model) {
  model.moe_router_dtype = RouterDType::fp32;
  model.moe_router_topk_scaling_factor = hf.real({"routed_scaling_factor"}, 1);
  hf.pass_over({"topk_group"});  // of one group
  if (const int64_t groups = hf.integer({"n_group"}, 1); groups > 1) {
    model.moe_router_num_groups = groups;
    model.moe_router_group_topk = hf.integer({"topk_group"});
  }
  if (const int64_t shared = hf.integer({"n_shared_experts"}, 0); shared > 0)
    model.moe_shared_expert_intermediate_size = shared * model.moe_ffn_hidden_size;
  const int64_t dense = hf.integer({"first_k_dense_replace"}, 0);
  set_expert_layers(model, [&](int64_t layer) { return layer >= dense; });
}

// MTP layers are there where the files have them, whatever the
// configuration says.
void read_mtp_layers(const HfSource& source, ModelConfig& model, double loss_factor) {
  const int64_t layers = source.config.integer({"num_nextn_predict_layers"}, 0);
  if (layers == 0 ||
      !source.has_tensor(fmt::format("model.layers.{}.eh_proj.weight", model.num_layers), false))
    return;
  model.mtp_num_layers = layers;
  model.mtp_loss_scaling_factor = loss_factor;
}

ModelConfig glm4_moe(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = mixture_config(source);
  model.rotary_percent = 0.5;
  read_rope(hf.rope(), hf, 1e4, model);
  model.add_attention_output_bias = false;
  model.qk_layernorm = hf.flag("use_qk_norm");
  read_sigmoid_router(hf, model);
  read_groups(hf, model);
  read_mtp_layers(source, model, 0.3);
  return model;
}

void read_latent_attention(const HfConfig& hf, ModelConfig& model) {
  model.mla_rotary_interleaved = hf.flag("rope_interleave", true);
  if (hf.flag("attention_bias"))
    throw ConfigError("config.json: attention_bias is not built for latent attention");
  model.multi_latent_attention = true;
  model.num_query_groups = model.num_attention_heads;
  model.group_query_attention = false;
  if (hf.has("q_lora_rank")) model.q_lora_rank = hf.integer({"q_lora_rank"});
  model.kv_lora_rank = hf.integer({"kv_lora_rank"});
  model.qk_head_dim = hf.integer({"qk_nope_head_dim"});
  model.qk_pos_emb_head_dim = hf.integer({"qk_rope_head_dim"});
  model.v_head_dim = hf.integer({"v_head_dim"});
  model.kv_channels = model.qk_head_dim + model.qk_pos_emb_head_dim;
  model.latent_norm_epsilon = 1e-6;  // whatever the other norms have

  const HfRope rope = hf.rope();
  const HfConfig scaling(rope.scaling);
  model.rotary_base = rope.theta.value_or(1e4);
  model.rope_type = rope.type == "yarn" ? RopeType::yarn : RopeType::rope;
  if (rope.type != "yarn" && rope.type != "default")
    throw ConfigError(
        fmt::format("config.json: rotary scaling '{}' is not built for latent attention", rope.type));
  if (rope.type == "default") return;
  model.original_max_position_embeddings =
      scaling.size({"original_max_position_embeddings"}, model.max_position_embeddings);
  model.rotary_scaling_factor = scaling.real({"factor"});
  model.beta_fast = scaling.real({"beta_fast"}, 32);
  model.beta_slow = scaling.real({"beta_slow"}, 1);
  model.mscale = scaling.real({"mscale"}, 0);
  model.mscale_all_dim = scaling.real({"mscale_all_dim"}, 0);
}

ModelConfig deepseek_v2(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = mixture_config(source);
  model.moe_router_pre_softmax = true;  // norm_topk_prob is not looked at
  read_latent_attention(hf, model);
  read_groups(hf, model);
  model.moe_router_group_score_topk = 1;
  if (hf.text({"topk_method"}, "greedy") != "group_limited_greedy")
    model.moe_router_num_groups = model.moe_router_group_topk = 0;
  read_mtp_layers(source, model, 0.1);
  return model;
}

ModelConfig deepseek_v3(const HfSource& source) {
  ModelConfig model = mixture_config(source);
  read_latent_attention(source.config, model);
  read_sigmoid_router(source.config, model);
  read_groups(source.config, model);
  read_mtp_layers(source, model, 0.1);
  return model;
}

ModelConfig gpt_oss(const HfSource& source) {
  ModelConfig model = mixture_config(source);
  read_rope(source.config.rope(), source.config, 1.5e5, model);
  read_windows(source.config, model, [](const HfConfig&, int64_t layer) { return layer % 2 == 0; });
  model.moe_router_pre_softmax = false;
  model.add_bias_linear = true;
  model.add_mlp_bias = true;
  model.softmax_type = SoftmaxType::learnable;
  model.activation_func = Activation::quick_gelu;
  model.activation_func_clamp_value = source.config.real({"swiglu_limit"}, 7);
  model.glu_linear_offset = 1;
  return model;
}

std::vector<WeightRule> usual_shared_expert_rules() {
  return shared_expert_rules("model.layers.*.mlp.shared_experts.gate_proj.weight",
                             "model.layers.*.mlp.shared_experts.up_proj.weight",
                             "model.layers.*.mlp.shared_experts.down_proj.weight");
}

std::vector<WeightRule> latent_attention_rules() {
  const auto row = [](const char* ours, const char* theirs) { return WeightRule{same, ours, {theirs}}; };
  return {
      row("decoder.layers.*.self_attention.linear_q_proj.weight", "model.layers.*.self_attn.q_proj.weight"),
      row("decoder.layers.*.self_attention.linear_q_down_proj.weight",
          "model.layers.*.self_attn.q_a_proj.weight"),
      row("decoder.layers.*.self_attention.q_layernorm.weight",
          "model.layers.*.self_attn.q_a_layernorm.weight"),
      row("decoder.layers.*.self_attention.linear_q_up_proj.weight",
          "model.layers.*.self_attn.q_b_proj.weight"),
      row("decoder.layers.*.self_attention.linear_kv_down_proj.weight",
          "model.layers.*.self_attn.kv_a_proj_with_mqa.weight"),
      row("decoder.layers.*.self_attention.kv_layernorm.weight",
          "model.layers.*.self_attn.kv_a_layernorm.weight"),
      row("decoder.layers.*.self_attention.linear_kv_up_proj.weight",
          "model.layers.*.self_attn.kv_b_proj.weight")};
}

// Numbered after the decoder's layers, whose rules their inner layer follows.
std::vector<WeightRule> mtp_rules() {
  return {{same, "decoder.layers.*.enorm.weight", {"model.layers.*.enorm.weight"}},
          {same, "decoder.layers.*.hnorm.weight", {"model.layers.*.hnorm.weight"}},
          {same, "decoder.layers.*.eh_proj.weight", {"model.layers.*.eh_proj.weight"}},
          {same, "decoder.layers.*.final_layernorm.weight", {"model.layers.*.shared_head.norm.weight"}}};
}

std::vector<WeightRule> gpt_oss_rules() {
  return {{same, "decoder.layers.*.mlp.router.weight", {"model.layers.*.mlp.router.weight"}},
          {same, "decoder.layers.*.mlp.router.bias", {"model.layers.*.mlp.router.bias"}},
          {packed_experts_gate_up,
           "decoder.layers.*.mlp.experts.experts.linear_fc1.weight",
           {"model.layers.*.mlp.experts.gate_up_proj"}},
          {packed_expert_biases_gate_up,
           "decoder.layers.*.mlp.experts.experts.linear_fc1.bias",
           {"model.layers.*.mlp.experts.gate_up_proj_bias"}},
          {packed_experts,
           "decoder.layers.*.mlp.experts.experts.linear_fc2.weight",
           {"model.layers.*.mlp.experts.down_proj"}},
          {same,
           "decoder.layers.*.mlp.experts.experts.linear_fc2.bias",
           {"model.layers.*.mlp.experts.down_proj_bias"}},
          {same,
           "decoder.layers.*.self_attention.core_attention.softmax_offset",
           {"model.layers.*.self_attn.sinks"}}};
}

}  // namespace

std::vector<Family> mixture_families() {
  const auto rules = embedding_rules() + attention_rules() + mlp_rules();
  const auto mixtral_rules = stacked_expert_rules() +
                             router_rules("model.layers.*.block_sparse_moe.gate.weight") +
                             expert_rules("model.layers.*.block_sparse_moe.experts.#.w1.weight",
                                          "model.layers.*.block_sparse_moe.experts.#.w3.weight",
                                          "model.layers.*.block_sparse_moe.experts.#.w2.weight");
  const auto deepseek =
      latent_attention_rules() + usual_expert_rules() + usual_shared_expert_rules() + mtp_rules() + rules;
  return {{{"MixtralForCausalLM"},
           mixtral,
           mixtral_rules + rules,
           nullptr,
           {},
           {{"block_sparse_moe.gate.weight", "mlp.gate.weight"}}},
          {{"Qwen2MoeForCausalLM"}, qwen2_moe, usual_expert_rules() + qwen_shared_expert_rules() + rules},
          {{"Qwen3MoeForCausalLM"}, qwen3_moe, usual_expert_rules() + qk_norm_rules() + rules},
          {{"OlmoeForCausalLM"}, olmoe, usual_expert_rules() + qk_norm_rules() + rules},
          {{"Glm4MoeForCausalLM"},
           glm4_moe,
           usual_expert_rules() + usual_shared_expert_rules() + qk_norm_rules() + mtp_rules() + rules},
          {{"DeepseekV2ForCausalLM"}, deepseek_v2, deepseek},
          {{"DeepseekV3ForCausalLM", "KimiK2ForCausalLM"}, deepseek_v3, deepseek},
          {{"GptOssForCausalLM"}, gpt_oss, gpt_oss_rules() + rules}};
}

}  // namespace megatron
