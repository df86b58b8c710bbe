#include "megatron/bridge/families/common.h"
#include "megatron/bridge/families/families.h"

namespace megatron {
namespace {

bool from_max_window_layers(const HfConfig& config, int64_t layer) {
  return layer >= config.integer({"max_window_layers"}, 28);
}

ModelConfig qwen2(const HfSource& source) {
  ModelConfig model = decoder_config(source);
  read_rope(source.config.rope(), source.config, 1e4, model);
  model.add_qkv_bias = source.has_tensor("model.layers.0.self_attn.q_proj.bias", true);
  source.config.pass_over({"sliding_window", "layer_types", "max_window_layers"});  // without windows
  if (source.config.flag("use_sliding_window")) read_windows(source.config, model, from_max_window_layers);
  return model;
}

ModelConfig qwen3(const HfSource& source) {
  ModelConfig model = qwen2(source);
  model.add_qkv_bias =
      source.has_tensor("model.layers.0.self_attn.q_proj.bias", source.config.flag("attention_bias"));
  model.qk_layernorm = true;
  read_qwen_mtp(source, model);
  return model;
}

}  // namespace

std::vector<Family> qwen_families() {
  const auto rules = embedding_rules() + attention_rules() + mlp_rules();
  const auto with_norms = qk_norm_rules() + rules;
  return {{{"Qwen2ForCausalLM"}, qwen2, rules},
          {{"Qwen3ForCausalLM"}, qwen3, qwen_mtp_rules(with_norms) + with_norms}};
}

}  // namespace megatron
