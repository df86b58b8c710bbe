#include "megatron/config/resolve/precision_recipe.h"

#include <algorithm>
#include <map>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/config/sources/yaml.h"

namespace megatron {
namespace {

[[noreturn]] void reject(const std::string& where, const std::string& why) {
  throw ConfigError(where + ": " + why);
}

const Json& field(const Json& object, std::string_view key, const std::string& where) {
  const Json* value = object.is_object() ? object.find(key) : nullptr;
  if (!value) reject(where, fmt::format("has no {}", key));
  return *value;
}

std::string text(const Json& value, const std::string& where) {
  if (!value.is_string()) reject(where, fmt::format("is {}, not a name", value.dump()));
  return value.as_string();
}

bool truth(const Json& value, const std::string& where) {
  if (!value.is_bool()) reject(where, fmt::format("is {}, not true or false", value.dump()));
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
  if (!recipe.is_object()) reject(where, "is no mapping");
  std::string fp8, fp4;
  for (const auto& [key, value] : recipe.as_object()) {
    const std::string at = where + "." + key;
    if (key == "fp8_quantization_recipe")
      fp8 = name_or_none(value, at);
    else if (key == "fp4_quantization_recipe")
      fp4 = name_or_none(value, at);
    else if (key == "fp8_format") {
      const std::string kind = text(value, at);
      if (kind != "e4m3" && kind != "hybrid") reject(at, fmt::format("is {}; use e4m3 or hybrid", kind));
      format.kind = kind == "e4m3" ? Fp8Format::e4m3 : Fp8Format::hybrid;
    } else if (key == "override_quantized_autocast")
      format.of_quantized = truth(value, at);
    else if (key == "override_nonquantized_autocast")
      format.of_plain = truth(value, at);
    else if (key == "tp_only_amax_red" || key == "fp8_param" || key == "fp4_param")
      truth(value, at);  // where values lie and who shares them changes no scale here
    else if (key == "custom_recipe_factory") {
      if (!value.is_null()) reject(at, "Python functions cannot be called; use tensorwise");
    } else
      reject(at, "is no field of a recipe");
  }
  if (!fp8.empty() && !fp4.empty()) reject(where, "has recipes of fp8 and fp4; leave one out");
  if (!fp4.empty() && fp4 != "nvfp4")
    reject(where, fmt::format("fp4 recipe {} is not known; use nvfp4", fp4));
  if (!fp8.empty() && fp8 != "tensorwise" && fp8 != "blockwise" && fp8 != "mxfp8")
    reject(where,
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
    reject(where, fmt::format("type {} is not known; use TEQuantizationParams", type));
  const auto format = format_of(field(config, "training_recipe", where), where + ".training_recipe", notes);
  for (const auto& [key, value] : config.as_object()) {
    if (key == "transformer_engine_config_type" || key == "training_recipe") continue;
    if (key != "evaluation_recipe") reject(where + "." + key, "is no field of a config");
    std::vector<std::string> same;
    if (!value.is_null() && format_of(value, where + ".evaluation_recipe", same) != format)
      reject(where + ".evaluation_recipe", "evaluations compute as training does; leave it out");
  }
  return format;
}

// How many characters of a pattern, which begins with no *, are for this one; 0: it does not fit.
size_t fits_one(std::string_view pattern, char letter) {
  if (pattern.empty()) return 0;
  const size_t end = pattern[0] == '[' ? pattern.find(']', 2) : std::string_view::npos;
  if (end == std::string_view::npos) return pattern[0] == '?' || pattern[0] == letter ? 1 : 0;
  std::string_view set = pattern.substr(1, end - 1);
  const bool without = set[0] == '!';
  if (without) set.remove_prefix(1);
  bool in = false;
  for (size_t i = 0; i < set.size(); ++i) {
    const bool range = i + 2 < set.size() && set[i + 1] == '-';
    in |= range ? set[i] <= letter && letter <= set[i + 2] : set[i] == letter;
    if (range) i += 2;
  }
  return in != without ? end + 1 : 0;
}

}  // namespace

PrecisionRecipe PrecisionRecipe::parse(const std::string& yaml, const std::string& origin) {
  const Json document = parse_yaml(yaml, origin);
  if (!document.is_object()) reject(origin, "is no mapping of configs and matchers");
  for (const auto& [key, value] : document.as_object())
    if (key != "configs" && key != "matchers")
      reject(origin + ": " + key, "is no field of the file; use configs and matchers");
  PrecisionRecipe recipe;
  const Json* configs = document.find("configs");
  std::map<std::string, Format> formats;  // that matchers name
  const Json* matchers = document.find("matchers");
  if (!matchers || matchers->is_null()) reject(origin, "has no matchers; add one that names a config");
  if (!matchers->is_object()) reject(origin, "matchers is no mapping");
  for (const auto& [name, matcher] : matchers->as_object()) {
    const std::string where = origin + ": matchers." + name;
    if (!matcher.is_object()) reject(where, "is no mapping of type, pattern, config and enabled");
    for (const auto& [key, value] : matcher.as_object())
      if (key != "type" && key != "pattern" && key != "config" && key != "enabled")
        reject(where + "." + key, "is no field of a matcher; use type, pattern, config and enabled");
    const Json* enabled = matcher.find("enabled");
    if (!enabled) reject(where, "has no enabled; add enabled: true, or false to leave it without effect");
    if (!truth(*enabled, where + ".enabled")) continue;
    const std::string type = text(field(matcher, "type", where), where + ".type");
    if (type != "glob") reject(where, fmt::format("type {} is not known; use glob", type));
    const std::string config = text(field(matcher, "config", where), where + ".config");
    if (!formats.contains(config)) {
      const Json* found = configs && configs->is_object() ? configs->find(config) : nullptr;
      if (!found) reject(where, fmt::format("{} is not among the configs", config));
      formats[config] = config_of(*found, origin + ": configs." + config, recipe.notes_);
    }
    recipe.matchers_.push_back({text(field(matcher, "pattern", where), where + ".pattern"), formats[config]});
  }
  if (recipe.matchers_.empty())
    recipe.notes_.push_back(origin + ": no matcher is enabled, so the file changes nothing");
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

// A later * makes up for all that an earlier one may take, so that going back to the last one is enough.
bool fits_glob(std::string_view pattern, std::string_view text) {
  constexpr size_t kNone = std::string_view::npos;
  size_t p = 0, t = 0, star = kNone, taken = 0;  // `taken`: where the text behind the last * begins
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (const size_t used = fits_one(pattern.substr(p), text[t])) {
      p += used;
      ++t;
    } else if (star != kNone) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == kNone;
}

}  // namespace megatron
