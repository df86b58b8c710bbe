#include "megatron/config/sources/yaml_arguments.h"

#include <algorithm>
#include <cstdlib>

#include "megatron/base/error.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/shorthand.h"
#include "megatron/config/sources/string_list.h"
#include "megatron/config/sources/value_parser.h"

namespace megatron {
namespace {

bool is_section(std::string_view name) { return name == "language_model" || name == "model_parallel"; }

std::string with_environment(const YamlEntry& entry) {
  std::string text = entry.value.as_string();
  for (size_t at = 0; (at = text.find("${", at)) != std::string::npos;) {
    const size_t end = text.find('}', at);
    if (end == std::string::npos) break;
    const std::string name = text.substr(at + 2, end - at - 2);
    const char* value = std::getenv(name.c_str());
    if (!value)
      throw ConfigError(
          fmt::format("the environment has no variable {} (got {}); set it, or write the value", name, text));
    text.replace(at, end + 1 - at, value);
    at += std::string_view(value).size();
  }
  return text;
}

// Activations that one word of such a file stands for.
std::vector<std::pair<std::string, Json>> activation(const std::string& name) {
  if (name == "swiglu") return {{"model.gated_linear_unit", true}, {"model.activation_func", "silu"}};
  if (name == "squaredrelu") return {{"model.activation_func", "squared_relu"}};
  return {{"model.activation_func", name}};
}

}  // namespace

bool names_arguments(const std::vector<YamlEntry>& entries) {
  return std::ranges::any_of(entries, [](const YamlEntry& entry) {
    return is_section(std::string_view(entry.name).substr(0, entry.name.find('.')));
  });
}

YamlArgument yaml_argument(const YamlEntry& entry) {
  YamlArgument result;
  const size_t dot = entry.name.find('.');
  const bool in_section = dot != std::string::npos && is_section(entry.name.substr(0, dot));
  const std::string key = in_section ? entry.name.substr(dot + 1) : entry.name;
  result.left_out = entry.value.is_null() || is_section(key);
  if (result.left_out) return result;
  const std::string text = entry.value.is_string() ? with_environment(entry) : "";
  Json value = entry.value.is_string() ? Json(text) : entry.value;
  if (key == "activation_func" && !text.empty()) {
    result.settings = activation(text);
    return result;
  }
  if (const Shorthand* shorthand = find_shorthand("--" + key)) {
    result.left_out = shorthand->values() == 0 && value.is_bool() && !value.as_bool();
    if (!result.left_out)
      result.settings = settings_of(*shorthand, text.empty() ? value : parse_scalar(text));
    return result;
  }
  const Catalog& catalog = Catalog::all();
  if (const Catalog::Flag* found = catalog.find_flag("--" + key)) {
    const Setting& setting = *found->entry->setting;
    if (setting.is_boolean() && value.is_bool()) {
      value = value.as_bool() == found->on;
    } else if (setting.is_list() && !text.empty()) {
      Json list = Json::array();
      for_each_word(text, [&](std::string_view word) { list.push_back(parse_scalar(word)); });
      value = std::move(list);
    } else if (!text.empty()) {
      value = parse_scalar(text);  // 1e-5, which YAML takes for a text
    }
    result.settings = {{setting.name(), std::move(value)}};
    return result;
  }
  for (const Catalog::Entry& one : catalog.entries())
    if (one.setting->key == key) {
      result.settings = {{one.setting->name(), text.empty() ? std::move(value) : parse_scalar(text)}};
      return result;
    }
  // A switch may be known by the flag that turns it off.
  for (const char* prefix : {"--", "--no-", "--disable-"}) {
    const CompatRow* row = find_compat_flag(prefix + key).row;
    if (!row) continue;
    result.row = row;
    result.left_out = value.is_bool() && value.as_bool() == (prefix != std::string_view("--"));
    break;
  }
  return result;
}

}  // namespace megatron
