#include "megatron/bridge/family.h"

#include <algorithm>

#include "megatron/base/problems.h"
#include "megatron/bridge/families/families.h"
#include "megatron/config/resolve/layer_blocks.h"

namespace megatron {
namespace {

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> list;
    for (auto group : {llama_families, qwen_families, gemma_families, other_families, mixture_families,
                       hybrid_families, encoder_families, vision_families})
      for (Family& family : group()) list.push_back(std::move(family));
    return list;
  }();
  return all;
}

// What no list of tensors would tell in words.
void check_sizes(const ModelConfig& model) {
  Problems problems;
  const int64_t heads = model.num_attention_heads, groups = model.num_query_groups;
  if (groups > 0 && heads % groups != 0)
    problems.add("{} key-value heads do not divide {} attention heads", groups, heads);
  if (model.num_moe_experts > 0 && model.moe_router_topk > model.num_moe_experts)
    problems.add("{} experts a token, but there are {}", model.moe_router_topk, model.num_moe_experts);
  problems.raise("config.json: its numbers do not fit together");
}

// Files of a model without a head (LlamaModel) leave out how names of the one with a head begin.
std::vector<Spelling> with_base(std::vector<Spelling> spellings) {
  spellings.push_back({"model.", ""});
  return spellings;
}

}  // namespace

FamilyModel::FamilyModel(const Family& own, const HfSource& source)
    : family(own), files(source.holds, with_base(own.spellings)) {
  const auto asked = std::make_shared<HfConfig::Keys>();
  const HfConfig config = source.config.noting(asked);
  HfSource spelled{config, {}};
  if (files.known()) spelled.holds = [this](std::string_view name) { return files.hold(name); };
  try {
    model = family.configure(spelled);
    if (family.configure_vision) {
      vision = family.configure_vision(spelled);
      static_cast<VisionConfig&>(model) = *vision;
    }
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {  // a value of another type, deep in a list
    throw ConfigError(fmt::format("config.json: {}", error.what()));
  }
  check_sizes(model);
  unknown_keys = source.config.unknown_keys(*asked);
}

std::vector<HfPart> FamilyModel::parts(std::string_view name, const Shape& global_shape) const {
  return hf_parts(family.rules, sizes_of(name), name, global_shape, files);
}

ModelConfig FamilyModel::sizes_of(std::string_view name) const {
  if (vision && name.starts_with("vision_model.")) return tower_config(*vision);
  constexpr std::string_view layer = "decoder.layers.";
  if (model.heterogeneous_layers_config_encoded_json.empty() || !name.starts_with(layer)) return model;
  return of_layer(model, std::stoll(std::string(name.substr(layer.size()))));
}

std::vector<std::string_view> supported_architectures() {
  std::vector<std::string_view> names;
  for (const Family& family : families())
    names.insert(names.end(), family.architectures.begin(), family.architectures.end());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_base_model(std::string_view architecture) {
  return architecture.ends_with("Model") && !architecture.ends_with("LMHeadModel");
}

const Family& find_family(std::string_view architecture) {
  std::vector<std::string> names{std::string(architecture)};
  if (is_base_model(architecture)) {
    const std::string_view stem =
        architecture.substr(0, architecture.size() - std::string_view("Model").size());
    for (const char* head : {"ForCausalLM", "LMHeadModel"}) names.push_back(std::string(stem) + head);
  }
  for (const Family& family : families())
    for (const std::string_view own : family.architectures)
      if (std::find(names.begin(), names.end(), own) != names.end()) return family;
  std::string known;
  for (std::string_view name : supported_architectures()) known += "\n  " + std::string(name);
  throw ConfigError(
      fmt::format("the architecture {} is not known here; known are:{}\ndocs/adding-a-model.md "
                  "tells how to add one",
                  architecture, known));
}

}  // namespace megatron
