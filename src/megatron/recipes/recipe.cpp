#include "megatron/recipes/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "megatron/base/error.h"
#include "megatron/bridge/family.h"
#include "megatron/config/resolve/model_settings.h"

namespace megatron {
namespace {

constexpr std::string_view kTasks[] = {"pretrain", "sft", "peft"};
constexpr std::string_view kGpus[] = {"h100", "b200", "b300", "gb200", "gb300", "vr200"};
constexpr std::string_view kPrecisions[] = {"bf16", "fp8cs", "fp8ds", "fp8mx", "fp8sc", "nvfp4"};

bool is_one_of(std::span<const std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace

void read_recipe_name(std::string_view name, Recipe& recipe) {
  const std::vector<std::string_view> words = split(name, '_');
  size_t task = 1;
  while (task < words.size() && !is_one_of(kTasks, words[task])) ++task;
  int64_t gpus = 0;
  if (task + 3 < words.size() && words[task + 1].ends_with("gpu")) {
    const std::string_view count = words[task + 1].substr(0, words[task + 1].size() - 3);
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), gpus);
    if (error != std::errc() || end != count.data() + count.size()) gpus = 0;
  }
  if (gpus <= 0 || !is_one_of(kGpus, words[task + 2]) || !is_one_of(kPrecisions, words[task + 3]))
    throw ConfigError(
        fmt::format("recipe {}: the name has another form (expected "
                    "{{model}}_{{task}}_{{N}}gpu_{{gpu}}_{{precision}}[_{{variant}}])",
                    name));
  const auto joined = [&](size_t from, size_t to) {
    return fmt::format("{}", fmt::join(words.begin() + static_cast<std::ptrdiff_t>(from),
                                       words.begin() + static_cast<std::ptrdiff_t>(to), "_"));
  };
  recipe.name = name;
  recipe.model = joined(0, task);
  recipe.task = words[task];
  recipe.gpus = gpus;
  recipe.gpu = words[task + 2];
  recipe.precision = words[task + 3];
  recipe.variant = joined(std::min(task + 4, words.size()), words.size());
}

Json recipe_settings(const Recipe& recipe) {
  const HfConfig config(recipe.config);
  ModelConfig model = FamilyModel(find_family(config.architecture()), HfSource{config, {}}).model;
  Json result = Json::object();
  result["model"] = model_settings(model);
  for (const auto& [name, value] : recipe.settings.as_object()) {
    const size_t dot = name.find('.');
    result[name.substr(0, dot)][name.substr(dot + 1)] = value;
  }
  // Longer sequences than the model was made for: what it knows of positions is computed, not stored.
  Json& own = result["model"];
  if (const Json* length = own.find("seq_length");
      length && model.position_embedding_type != PositionEmbedding::learned_absolute)
    own["max_position_embeddings"] = std::max(length->as_int(), model.max_position_embeddings);
  return result;
}

std::string recipe_yaml(const Recipe& recipe) {
  std::string text = fmt::format("# {}{}\n", recipe.name, recipe.hf.empty() ? "" : ": " + recipe.hf);
  if (!recipe.needs.empty()) text += fmt::format("# needs: {}\n", recipe.needs);
  for (const std::string& note : recipe.notes) text += fmt::format("# note: {}\n", note);
  const Json sections = recipe_settings(recipe);
  for (const auto& [section, settings] : sections.as_object()) {
    text += section + ":\n";
    for (const auto& [key, value] : settings.as_object())
      text += fmt::format("  {}: {}\n", key, value.dump());
  }
  return text;
}

}  // namespace megatron
