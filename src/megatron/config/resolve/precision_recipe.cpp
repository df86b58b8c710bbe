#include "megatron/config/resolve/precision_recipe.h"

#include <algorithm>
#include <map>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/config/sources/yaml.h"

namespace megatron {
namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw ConfigError(where + ": " + why);
}

const Json& field(const Json& object, std::string_view key, const std::string& where) {
  const Json* value = object.is_object() ? object.find(key) : nullptr;
  if (!value) refuse(where, fmt::format("has no {}", key));
  return *value;
}

std::string text(const Json& value, const std::string& where) {
  if (!value.is_string()) refuse(where, fmt::format("is {}, not a name", value.dump()));
  return value.as_string();
}

bool truth(const Json& value, const std::string& where) {
  if (!value.is_bool()) refuse(where, fmt::format("is {}, not true or false", value.dump()));
  return value.as_bool();
}

// null and the word None are none.
std::string name_or_none(const Json& value, const std::string& where) {
  if (value.is_null() || (value.is_string() && (value.as_string() == "None" || value.as_string() == "none")))
    return {};
  return text(value, where);
}

PrecisionRecipe::Format format_of(const Json& recipe, const std::string& where,
                                  std::vector<std::string>& notes) {
  PrecisionRecipe::Format format;
  if (!recipe.is_object()) refuse(where, "is no mapping");
  std::string fp8, fp4;
  for (const auto& [key, value] : recipe.as_object()) {
    const std::string at = where + "." + key;
    if (key == "fp8_quantization_recipe")
      fp8 = name_or_none(value, at);
    else if (key == "fp4_quantization_recipe")
      fp4 = name_or_none(value, at);
    else if (key == "fp8_format") {
      const std::string kind = text(value, at);
      if (kind != "e4m3" && kind != "hybrid") refuse(at, fmt::format("is {}; use e4m3 or hybrid", kind));
      format.kind = kind == "e4m3" ? Fp8Format::e4m3 : Fp8Format::hybrid;
    } else if (key == "override_quantized_autocast")
      format.of_quantized = truth(value, at);
    else if (key == "override_nonquantized_autocast")
      format.of_plain = truth(value, at);
    else if (key == "tp_only_amax_red" || key == "fp8_param" || key == "fp4_param")
      truth(value, at);  // where values lie and who shares them changes no scale here
    else if (key == "custom_recipe_factory") {
      if (!value.is_null()) refuse(at, "Python functions cannot be called; use tensorwise");
    } else
      refuse(at, "is no field of a recipe");
  }
  if (!fp8.empty() && !fp4.empty()) refuse(where, "has recipes of fp8 and fp4; leave one out");
  if (!fp4.empty() && fp4 != "nvfp4")
    refuse(where, fmt::format("fp4 recipe {} is not known; use nvfp4", fp4));
  if (!fp8.empty() && fp8 != "tensorwise" && fp8 != "blockwise" && fp8 != "mxfp8")
    refuse(where,
           fmt::format("fp8 recipe {} is not one of modules; use tensorwise, blockwise or mxfp8", fp8));
  format.fp8 = !fp8.empty() || !fp4.empty();
  format.blocks = format.fp8 && fp8 != "tensorwise";
  if (fp8 == "mxfp8" || !fp4.empty()) {
    notes.push_back(fmt::format("{}: {} is replaced by fp8 blockwise", where, fp4.empty() ? fp8 : fp4));
    if (!fp4.empty()) format.kind = Fp8Format::e4m3;
  }
  return format;
}

PrecisionRecipe::Format config_of(const Json& config, const std::string& where,
                                  std::vector<std::string>& notes) {
  const std::string type = text(field(config, "transformer_engine_config_type", where), where);
  if (type != "TEQuantizationParams")
    refuse(where, fmt::format("type {} is not known; use TEQuantizationParams", type));
  const auto format = format_of(field(config, "training_recipe", where), where + ".training_recipe", notes);
  for (const auto& [key, value] : config.as_object()) {
    if (key == "transformer_engine_config_type" || key == "training_recipe") continue;
    if (key != "evaluation_recipe") refuse(where + "." + key, "is no field of a config");
    std::vector<std::string> same;
    if (!value.is_null() && format_of(value, where + ".evaluation_recipe", same) != format)
      refuse(where + ".evaluation_recipe", "evaluations compute as training does; leave it out");
  }
  return format;
}

}  // namespace

PrecisionRecipe PrecisionRecipe::parse(const std::string& yaml, const std::string& origin) {
  const Json document = parse_yaml(yaml, origin);
  if (!document.is_object()) refuse(origin, "is no mapping of configs and matchers");
  PrecisionRecipe recipe;
  const Json* configs = document.find("configs");
  std::map<std::string, Format> formats;  // that matchers name
  const Json* matchers = document.find("matchers");
  if (!matchers || matchers->is_null()) return recipe;
  if (!matchers->is_object()) refuse(origin, "matchers is no mapping");
  for (const auto& [name, matcher] : matchers->as_object()) {
    const std::string where = origin + ": matchers." + name;
    const Json* enabled = matcher.is_object() ? matcher.find("enabled") : nullptr;
    if (!enabled || !truth(*enabled, where + ".enabled")) continue;
    const std::string type = text(field(matcher, "type", where), where + ".type");
    if (type != "glob") refuse(where, fmt::format("type {} is not known; use glob", type));
    const std::string config = text(field(matcher, "config", where), where + ".config");
    if (!formats.contains(config)) {
      const Json* found = configs && configs->is_object() ? configs->find(config) : nullptr;
      if (!found) refuse(where, fmt::format("{} is not among the configs", config));
      formats[config] = config_of(*found, origin + ": configs." + config, recipe.notes_);
    }
    recipe.matchers_.push_back({text(field(matcher, "pattern", where), where + ".pattern"), formats[config]});
  }
  return recipe;
}

PrecisionRecipe PrecisionRecipe::read(const std::string& path) {
  return path.empty() ? PrecisionRecipe() : parse(read_text_file(path), path);
}

std::optional<PrecisionRecipe::Format> PrecisionRecipe::of(std::string_view module, bool quantized) const {
  for (const Matcher& matcher : matchers_)
    if (fits_glob(matcher.pattern, module)) {
      if (quantized ? matcher.format.of_quantized : matcher.format.of_plain) return matcher.format;
      return {};
    }
  return {};
}

bool PrecisionRecipe::may_quantize_plain() const {
  return std::any_of(matchers_.begin(), matchers_.end(),
                     [](const Matcher& matcher) { return matcher.format.fp8 && matcher.format.of_plain; });
}

bool may_have_fp8_linears(const PrecisionConfig& precision) {
  if (precision.fp8 != Fp8Format::none) return true;
  try {
    return PrecisionRecipe::read(precision.te_precision_config_file).may_quantize_plain();
  } catch (const Error&) {
    return false;
  }
}

bool fits_glob(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (size_t i = 0; i <= text.size(); ++i)
      if (fits_glob(pattern.substr(1), text.substr(i))) return true;
    return false;
  }
  if (text.empty()) return false;
  if (pattern[0] == '[')
    if (const size_t end = pattern.find(']', 2); end != std::string_view::npos) {
      std::string_view set = pattern.substr(1, end - 1);
      const bool without = set[0] == '!';
      if (without) set.remove_prefix(1);
      bool in = false;
      for (size_t i = 0; i < set.size(); ++i) {
        const bool range = i + 2 < set.size() && set[i + 1] == '-';
        in |= range ? set[i] <= text[0] && text[0] <= set[i + 2] : set[i] == text[0];
        if (range) i += 2;
      }
      return in != without && fits_glob(pattern.substr(end + 1), text.substr(1));
    }
  return (pattern[0] == '?' || pattern[0] == text[0]) && fits_glob(pattern.substr(1), text.substr(1));
}

}  // namespace megatron
