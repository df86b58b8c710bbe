#include "megatron/bridge/families/common.h"
#include "megatron/bridge/families/families.h"

namespace megatron {
namespace {

using enum WeightLayout;

ModelConfig glm4(const HfSource& source) {
  ModelConfig model = decoder_config(source);
  model.rotary_percent = 0.5;
  read_rope(source.config.rope(), source.config, 1e4, model);
  model.rotary_interleaved = true;
  model.add_attention_output_bias = false;
  model.post_attention_layernorm = model.post_mlp_layernorm = true;
  return model;
}

ModelConfig nemotron(const HfSource& source) {
  ModelConfig model = decoder_config(source);
  model.rotary_percent = 0.5;
  read_rope(source.config.rope(), source.config, 1e4, model);
  model.normalization = Normalization::layer_norm;
  model.layernorm_zero_centered_gamma = true;
  model.layernorm_epsilon = source.config.real({"norm_eps"}, 1e-5);
  model.activation_func = read_activation(source.config.text({"hidden_act"}, "relu2"));
  model.gated_linear_unit = false;
  return model;
}

ModelConfig olmo2(const HfSource& source) {
  ModelConfig model = decoder_config(source);
  read_rope(source.config.rope(), source.config, 5e5, model);
  model.pre_layernorm = false;
  model.post_attention_layernorm = model.post_mlp_layernorm = true;
  model.qk_layernorm = model.qk_layernorm_full_width = true;
  return model;
}

ModelConfig gpt2(const HfSource& source) {
  const HfConfig& hf = source.config;
  hf.expect("scale_attn_weights", true, "the scale of attention");
  hf.expect("scale_attn_by_inverse_layer_idx", false, "the scale of attention");
  hf.expect("add_cross_attention", false, "the layers");
  ModelConfig model;
  model.num_layers = hf.layers({"n_layer"});
  model.hidden_size = hf.integer({"n_embd"});
  model.num_attention_heads = model.num_query_groups = hf.integer({"n_head"});
  model.kv_channels = model.hidden_size / model.num_attention_heads;
  model.ffn_hidden_size = hf.size({"n_inner"}, 4 * model.hidden_size);
  model.max_position_embeddings = model.seq_length = hf.size({"n_positions"}, 1024);
  model.vocab_size = hf.integer({"vocab_size"});
  fit_vocabulary(model);
  model.normalization = Normalization::layer_norm;
  model.layernorm_epsilon = hf.real({"layer_norm_epsilon"}, 1e-5);
  model.position_embedding_type = PositionEmbedding::learned_absolute;
  model.activation_func = read_activation(hf.text({"activation_function"}, "gelu_new"));
  model.gated_linear_unit = false;
  model.add_bias_linear = true;
  model.attention_dropout = hf.real({"attn_pdrop"}, 0.1);
  model.hidden_dropout = hf.real({"resid_pdrop"}, 0.1);
  model.init_method_std = hf.real({"initializer_range"}, 0.02);
  model.share_embeddings_and_output_weights = hf.flag("tie_word_embeddings", true);
  return model;
}

// LayerNorms, biases everywhere, a plain MLP, and attention beside the MLP: what GPT-NeoX and Phi share.
ModelConfig beside(const HfSource& source, const char* activation) {
  ModelConfig model = decoder_config(source);
  model.normalization = Normalization::layer_norm;
  model.layernorm_epsilon = source.config.real({"layer_norm_eps"}, 1e-5);
  model.activation_func = read_activation(source.config.text({"hidden_act"}, activation));
  model.gated_linear_unit = false;
  model.add_qkv_bias = true;
  model.add_attention_output_bias = model.add_mlp_bias = true;
  model.share_embeddings_and_output_weights = source.config.flag("tie_word_embeddings", false);
  return model;
}

ModelConfig gpt_neox(const HfSource& source) {
  const HfConfig& hf = source.config;
  hf.expect("is_decoder", false, "the layers");
  ModelConfig model = beside(source, "gelu");
  model.rotary_percent = hf.real({"rotary_pct"}, 0.25);  // of older files
  read_rope(hf.rope(), hf, hf.real({"rotary_emb_base"}, 1e4), model);
  model.add_qkv_bias = hf.flag("attention_bias", true);
  model.add_attention_output_bias = model.add_qkv_bias;
  model.hidden_dropout = hf.real({"hidden_dropout"}, 0);
  model.parallel_residual = hf.flag("use_parallel_residual", true);
  return model;
}

ModelConfig phi(const HfSource& source) {
  const HfConfig& hf = source.config;
  hf.expect("qk_layernorm", false, "queries and keys");
  ModelConfig model = beside(source, "gelu_new");
  model.rotary_percent = 0.5;
  read_rope(hf.rope(), hf, 1e4, model);
  model.parallel_residual = model.parallel_residual_shared_layernorm = true;
  model.output_layer_bias = true;
  return model;
}

std::vector<WeightRule> glm4_rules() {
  return std::vector<WeightRule>{
             {same, "decoder.layers.*.mlp.linear_fc1.weight", {"model.layers.*.mlp.gate_up_proj.weight"}}} +
         sandwich_rules("model.layers.*.post_self_attn_layernorm.weight",
                        "model.layers.*.post_attention_layernorm.weight",
                        "model.layers.*.post_mlp_layernorm.weight") +
         embedding_rules() + attention_rules() + mlp_rules();
}

std::vector<WeightRule> nemotron_rules() {
  return std::vector<WeightRule>{
             {same, "decoder.final_layernorm.bias", {"model.norm.bias"}},
             {same, "decoder.layers.*.input_layernorm.bias", {"model.layers.*.input_layernorm.bias"}},
             {same,
              "decoder.layers.*.pre_mlp_layernorm.bias",
              {"model.layers.*.post_attention_layernorm.bias"}},
             {same, "decoder.layers.*.mlp.linear_fc1.weight", {"model.layers.*.mlp.up_proj.weight"}},
             {same, "decoder.layers.*.mlp.linear_fc1.bias", {"model.layers.*.mlp.up_proj.bias"}}} +
         embedding_rules() + attention_rules() + mlp_rules();
}

std::vector<WeightRule> olmo2_rules() {
  return sandwich_rules("model.layers.*.post_attention_layernorm.weight", "",
                        "model.layers.*.post_feedforward_layernorm.weight") +
         qk_norm_rules() + embedding_rules() + attention_rules() + mlp_rules();
}

// GPT-2 keeps its matrices [in, out].
std::vector<WeightRule> gpt2_rules() {
  return {
      {same, "embedding.word_embeddings.weight", {"transformer.wte.weight"}},
      {same, "embedding.position_embeddings.weight", {"transformer.wpe.weight"}},
      {same, "decoder.final_layernorm.weight", {"transformer.ln_f.weight"}},
      {same, "decoder.final_layernorm.bias", {"transformer.ln_f.bias"}},
      {same, "output_layer.weight", {"lm_head.weight"}},
      {same, "decoder.layers.*.input_layernorm.weight", {"transformer.h.*.ln_1.weight"}},
      {same, "decoder.layers.*.input_layernorm.bias", {"transformer.h.*.ln_1.bias"}},
      {packed_qkv_transposed,
       "decoder.layers.*.self_attention.linear_qkv.weight",
       {"transformer.h.*.attn.c_attn.weight"}},
      {packed_qkv, "decoder.layers.*.self_attention.linear_qkv.bias", {"transformer.h.*.attn.c_attn.bias"}},
      {transposed,
       "decoder.layers.*.self_attention.linear_proj.weight",
       {"transformer.h.*.attn.c_proj.weight"}},
      {same, "decoder.layers.*.self_attention.linear_proj.bias", {"transformer.h.*.attn.c_proj.bias"}},
      {same, "decoder.layers.*.pre_mlp_layernorm.weight", {"transformer.h.*.ln_2.weight"}},
      {same, "decoder.layers.*.pre_mlp_layernorm.bias", {"transformer.h.*.ln_2.bias"}},
      {transposed, "decoder.layers.*.mlp.linear_fc1.weight", {"transformer.h.*.mlp.c_fc.weight"}},
      {same, "decoder.layers.*.mlp.linear_fc1.bias", {"transformer.h.*.mlp.c_fc.bias"}},
      {transposed, "decoder.layers.*.mlp.linear_fc2.weight", {"transformer.h.*.mlp.c_proj.weight"}},
      {same, "decoder.layers.*.mlp.linear_fc2.bias", {"transformer.h.*.mlp.c_proj.bias"}}};
}

// The weight and the bias of one module.
void add_module(std::vector<WeightRule>& rules, const std::string& ours, const std::string& theirs) {
  for (const char* part : {".weight", ".bias"}) rules.push_back({same, ours + part, {theirs + part}});
}

// Its heads lie one behind the other, each with query, key and value: as ours do where no heads are shared.
std::vector<WeightRule> gpt_neox_rules() {
  std::vector<WeightRule> rules = {{same, "embedding.word_embeddings.weight", {"gpt_neox.embed_in.weight"}},
                                   {same, "output_layer.weight", {"embed_out.weight"}}};
  const std::string ours = "decoder.layers.*.", theirs = "gpt_neox.layers.*.";
  add_module(rules, "decoder.final_layernorm", "gpt_neox.final_layer_norm");
  add_module(rules, ours + "input_layernorm", theirs + "input_layernorm");
  add_module(rules, ours + "pre_mlp_layernorm", theirs + "post_attention_layernorm");
  add_module(rules, ours + "self_attention.linear_qkv", theirs + "attention.query_key_value");
  add_module(rules, ours + "self_attention.linear_proj", theirs + "attention.dense");
  add_module(rules, ours + "mlp.linear_fc1", theirs + "mlp.dense_h_to_4h");
  add_module(rules, ours + "mlp.linear_fc2", theirs + "mlp.dense_4h_to_h");
  return rules;
}

std::vector<WeightRule> phi_rules() {
  std::vector<WeightRule> rules = {
      {same, "output_layer.bias", {"lm_head.bias"}},
      {same, "decoder.layers.*.input_layernorm.bias", {"model.layers.*.input_layernorm.bias"}}};
  const std::string ours = "decoder.layers.*.", theirs = "model.layers.*.";
  add_module(rules, "decoder.final_layernorm", "model.final_layernorm");
  add_module(rules, ours + "self_attention.linear_proj", theirs + "self_attn.dense");
  add_module(rules, ours + "mlp.linear_fc1", theirs + "mlp.fc1");
  add_module(rules, ours + "mlp.linear_fc2", theirs + "mlp.fc2");
  return rules + embedding_rules() + attention_rules();
}

}  // namespace

std::vector<Family> other_families() {
  return {{{"Glm4ForCausalLM"}, glm4, glm4_rules()},
          {{"NemotronForCausalLM"}, nemotron, nemotron_rules()},
          {{"Olmo2ForCausalLM"}, olmo2, olmo2_rules()},
          {{"GPT2LMHeadModel"}, gpt2, gpt2_rules(), nullptr, {}, {{"transformer.", ""}}},
          {{"GPTNeoXForCausalLM"}, gpt_neox, gpt_neox_rules(), nullptr, {}, {{"gpt_neox.", ""}}},
          {{"PhiForCausalLM"}, phi, phi_rules()}};
}

}  // namespace megatron
