#include "megatron/bridge/family.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/bridge/families/families.h"

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

}  // namespace

FamilyModel::FamilyModel(const Family& family, const HfSource& source) : model(family.configure(source)) {
  if (family.configure_vision) vision = family.configure_vision(source);
}

std::vector<std::string_view> supported_architectures() {
  std::vector<std::string_view> names;
  for (const Family& family : families())
    names.insert(names.end(), family.architectures.begin(), family.architectures.end());
  std::sort(names.begin(), names.end());
  return names;
}

const Family& find_family(std::string_view architecture) {
  for (const Family& family : families())
    if (std::find(family.architectures.begin(), family.architectures.end(), architecture) !=
        family.architectures.end())
      return family;
  std::string known;
  for (std::string_view name : supported_architectures()) known += "\n  " + std::string(name);
  throw ConfigError(
      fmt::format("the architecture {} is not known here; known are:{}\ndocs/adding-a-model.md "
                  "tells how to add one",
                  architecture, known));
}

}  // namespace megatron
