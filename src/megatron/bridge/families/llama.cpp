#include "megatron/bridge/families/common.h"
#include "megatron/bridge/families/families.h"

namespace megatron {
namespace {

using enum WeightLayout;

bool every_layer(const HfConfig&, int64_t) { return true; }

ModelConfig llama(const HfSource& source) {
  ModelConfig model = decoder_config(source);
  read_rope(source.config.rope(), source.config, 1e4, model);
  return model;
}

ModelConfig mistral(const HfSource& source) {
  ModelConfig model = llama(source);
  read_windows(source.config, model, every_layer);
  return model;
}

ModelConfig ministral3(const HfSource& source) {
  ModelConfig model = mistral(source);
  const HfConfig scaling(source.config.rope().scaling);
  if (scaling.has("llama_4_scaling_beta")) model.query_scaling_beta = scaling.real({"llama_4_scaling_beta"});
  return model;
}

std::vector<WeightRule> fused_projection_rules() {
  return {{packed_qkv,
           "decoder.layers.*.self_attention.linear_qkv.weight",
           {"model.layers.*.self_attn.qkv_proj.weight"}},
          {same, "decoder.layers.*.mlp.linear_fc1.weight", {"model.layers.*.mlp.gate_up_proj.weight"}}};
}

}  // namespace

std::vector<Family> llama_families() {
  const auto rules = embedding_rules() + attention_rules() + mlp_rules();
  return {{{"LlamaForCausalLM"}, llama, rules},
          {{"MistralForCausalLM", "MinistralForCausalLM"}, mistral, rules},
          {{"Ministral3ForCausalLM"}, ministral3, rules},
          {{"Phi3ForCausalLM"}, mistral, fused_projection_rules() + rules}};
}

}  // namespace megatron
