#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/bridge/families/common.h"
#include "megatron/bridge/families/families.h"
#include "megatron/config/resolve/layer_blocks.h"

namespace megatron {
namespace {

using enum WeightLayout;

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

// What is known of a part of a layer; a key that would change it and is not known is refused.
Json known_settings(const Json& part, size_t layer) {
  Json known = Json::object();
  for (const auto& [key, value] : part.as_object()) {
    if (value.is_null()) continue;
    constexpr std::string_view kBuilt[] = {"no_op", "replace_with_linear", "n_heads_in_group", "ffn_mult",
                                           "intermediate_size"};
    if (std::find(std::begin(kBuilt), std::end(kBuilt), key) != std::end(kBuilt))
      known[key] = value;
    else if (!value.is_bool() || value.as_bool())
      throw ConfigError(
          fmt::format("config.json: block_configs: layer {} has {}, which is not built here; {} are", layer,
                      key, fmt::join(kBuilt, ", ")));
  }
  return known;
}

// Llama-Nemotron: what a search left of every layer of a Llama.
ModelConfig llama_nemotron(const HfSource& source) {
  if (!source.config.has("block_configs")) return llama(source);
  Json json = source.config.json();
  if (!source.config.has("intermediate_size"))
    json["intermediate_size"] = source.config.integer({"hidden_size"});
  const HfConfig filled = source.config.with(json);
  ModelConfig model = llama({filled, source.holds});
  Json list = Json::array();
  for (const Json& block : filled.list("block_configs", model.num_layers)) {
    Json own = Json::object();
    for (std::string_view part : {"attention", "ffn"})
      if (const Json* settings = block.find(part); settings && !settings->is_null())
        own[part] = known_settings(*settings, list.size());
    list.push_back(own);
  }
  Json description = Json::object();
  description["block_configs"] = list;
  model.heterogeneous_layers_config_encoded_json = description.dump();
  // What stands for the whole model: the first layer that has the part.
  const std::vector<LayerBlock> blocks = read_layer_blocks(model);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (block->attention) model.num_query_groups = block->query_groups;
    if (block->mlp) model.ffn_hidden_size = block->ffn_hidden_size;
  }
  model.group_query_attention = model.num_query_groups != model.num_attention_heads;
  model.layer_blocks = read_layer_blocks(model);
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
          {{"DeciLMForCausalLM"}, llama_nemotron, rules},
          {{"MistralForCausalLM", "MinistralForCausalLM"}, mistral, rules},
          {{"Ministral3ForCausalLM"}, ministral3, rules},
          {{"Phi3ForCausalLM"}, mistral, fused_projection_rules() + rules}};
}

}  // namespace megatron
