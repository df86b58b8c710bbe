#include <cmath>

#include "megatron/bridge/families/common.h"
#include "megatron/bridge/families/families.h"

namespace megatron {
namespace {

bool even_layers(const HfConfig&, int64_t layer) { return layer % 2 == 0; }

bool five_of_six(const HfConfig& config, int64_t layer) {
  return (layer + 1) % config.size({"sliding_window_pattern", "_sliding_window_pattern"}, 6) != 0;
}

ModelConfig gemma(const HfSource& source) {
  ModelConfig model = decoder_config(source);
  read_rope(source.config.rope(), source.config, 1e4, model);
  model.kv_channels = source.config.size({"head_dim"}, 256);
  model.layernorm_zero_centered_gamma = true;
  model.embedding_multiplier = std::sqrt(static_cast<double>(model.hidden_size));
  model.share_embeddings_and_output_weights = source.config.flag("tie_word_embeddings", true);
  // Released files say "gelu" and mean the tanh form.
  const std::string name = source.config.text({"hidden_activation", "hidden_act"}, "gelu_pytorch_tanh");
  model.activation_func = name == "gelu" ? Activation::gelu_tanh : read_activation(name);
  return model;
}

ModelConfig gemma2(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = gemma(source);
  model.post_attention_layernorm = model.post_mlp_layernorm = true;
  model.softmax_scale = 1 / std::sqrt(hf.real({"query_pre_attn_scalar"}, 256));
  if (hf.has("attn_logit_softcapping")) model.attn_logit_softcapping = hf.real({"attn_logit_softcapping"});
  if (hf.has("final_logit_softcapping")) model.final_logit_softcapping = hf.real({"final_logit_softcapping"});
  read_windows(hf, model, even_layers);
  return model;
}

ModelConfig gemma3(const HfSource& source) {
  const HfConfig& hf = source.config;
  hf.expect("use_bidirectional_attention", false, "the mask of attention");
  ModelConfig model = gemma2(source);
  model.qk_layernorm = true;
  model.window_size.clear();
  model.window_attn_skip_freq = {};
  read_windows(hf, model, five_of_six);
  read_rope(hf.rope("full_attention"), hf, 1e6, model);
  // Older files keep the base of windowed layers apart; only the other layers are ever scaled.
  const bool per_type =
      hf.has("rope_parameters") && hf.find({"rope_parameters"})->contains("sliding_attention");
  model.rotary_base_local =
      per_type ? hf.rope("sliding_attention").theta.value_or(1e4) : hf.real({"rope_local_base_freq"}, 1e4);
  return model;
}

}  // namespace

std::vector<Family> gemma_families() {
  const auto rules = embedding_rules() + attention_rules() + mlp_rules();
  const auto sandwich = sandwich_rules("model.layers.*.post_attention_layernorm.weight",
                                       "model.layers.*.pre_feedforward_layernorm.weight",
                                       "model.layers.*.post_feedforward_layernorm.weight");
  return {{{"GemmaForCausalLM"}, gemma, rules},
          {{"Gemma2ForCausalLM"}, gemma2, sandwich + rules},
          {{"Gemma3ForCausalLM"}, gemma3, sandwich + qk_norm_rules() + rules}};
}

}  // namespace megatron
