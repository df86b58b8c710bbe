#include "megatron/bridge/hf_config.h"

#include <filesystem>

#include "megatron/base/error.h"

namespace megatron {
namespace {

const Json* present(const Json& object, std::string_view key) {
  const Json* value = object.is_object() ? object.find(key) : nullptr;
  return value && !value->is_null() ? value : nullptr;
}

std::string joined(std::initializer_list<std::string_view> keys) {
  std::string text;
  for (std::string_view key : keys) text += (text.empty() ? "" : " or ") + std::string(key);
  return text;
}

}  // namespace

HfConfig::HfConfig(Json json) : json_(std::move(json)) {
  if (!json_.is_object()) throw ConfigError("config.json: it is no JSON object");
}

HfConfig HfConfig::read(const std::string& directory) {
  const std::string path = directory + "/config.json";
  if (!std::filesystem::exists(path))
    throw ConfigError(
        fmt::format("{}: there is no config.json; name the directory of a Hugging Face model", directory));
  return HfConfig(Json::read(path));
}

std::string HfConfig::architecture() const {
  const Json* list = find({"architectures"});
  if (!list || !list->is_array() || list->size() == 0)
    throw ConfigError("config.json: it has no architectures, so the kind of model is unknown");
  return (*list)[0].as_string();
}

std::string HfConfig::dtype() const { return text({"dtype", "torch_dtype"}, "float32"); }

const Json* HfConfig::find(std::initializer_list<std::string_view> keys) const {
  for (std::string_view key : keys)
    if (const Json* value = present(json_, key)) return value;
  return nullptr;
}

int64_t HfConfig::integer(std::initializer_list<std::string_view> keys,
                          std::optional<int64_t> fallback) const {
  if (const Json* value = find(keys)) return value->as_int();
  if (!fallback) throw ConfigError(fmt::format("config.json: {} is missing", joined(keys)));
  return *fallback;
}

double HfConfig::real(std::initializer_list<std::string_view> keys, std::optional<double> fallback) const {
  if (const Json* value = find(keys)) return value->as_double();
  if (!fallback) throw ConfigError(fmt::format("config.json: {} is missing", joined(keys)));
  return *fallback;
}

std::string HfConfig::text(std::initializer_list<std::string_view> keys, std::string_view fallback) const {
  const Json* value = find(keys);
  return value ? value->as_string() : std::string(fallback);
}

bool HfConfig::flag(std::string_view key, bool fallback) const {
  const Json* value = find({key});
  return value ? value->as_bool() : fallback;
}

HfRope HfConfig::rope(std::string_view layer_type) const {
  HfRope rope;
  const Json* dict = find({"rope_parameters", "rope_scaling"});
  if (dict && dict->is_object())
    if (const Json* own = present(*dict, layer_type)) dict = own;
  if (dict && dict->is_object()) {
    rope.scaling = *dict;
    for (std::string_view key : {"rope_type", "type"})
      if (const Json* type = present(*dict, key)) {
        rope.type = type->as_string();
        break;
      }
    if (const Json* theta = present(*dict, "rope_theta")) rope.theta = theta->as_double();
    if (const Json* part = present(*dict, "partial_rotary_factor"))
      rope.partial_rotary_factor = part->as_double();
  }
  if (rope.type == "mrope") rope.type = "default";
  if (!rope.theta && has("rope_theta")) rope.theta = real({"rope_theta"});
  if (!rope.partial_rotary_factor && has("partial_rotary_factor"))
    rope.partial_rotary_factor = real({"partial_rotary_factor"});
  return rope;
}

}  // namespace megatron
