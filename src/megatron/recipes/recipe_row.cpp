#include "megatron/recipes/recipe_row.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/compat.h"

namespace megatron {
namespace {

enum class Kind { whole, real, truth, text };

struct Shorthand {
  std::string_view key;
  Kind kind;
  std::string_view setting;
};

constexpr std::array kShorthands{
    Shorthand{"tp", Kind::whole, "model.tensor_model_parallel_size"},
    Shorthand{"pp", Kind::whole, "model.pipeline_model_parallel_size"},
    Shorthand{"vp", Kind::whole, "model.virtual_pipeline_model_parallel_size"},
    Shorthand{"cp", Kind::whole, "model.context_parallel_size"},
    Shorthand{"ep", Kind::whole, "model.expert_model_parallel_size"},
    Shorthand{"etp", Kind::whole, "model.expert_tensor_parallel_size"},
    Shorthand{"sp", Kind::truth, "model.sequence_parallel"},
    Shorthand{"seq", Kind::whole, "model.seq_length"},
    Shorthand{"mbs", Kind::whole, "train.micro_batch_size"},
    Shorthand{"gbs", Kind::whole, "train.global_batch_size"},
    Shorthand{"iters", Kind::whole, "train.train_iters"},
    Shorthand{"lr", Kind::real, "optimizer.lr"},
    Shorthand{"min_lr", Kind::real, "optimizer.min_lr"},
    Shorthand{"warmup", Kind::whole, "scheduler.lr_warmup_iters"},
    Shorthand{"precision", Kind::text, "run.mixed_precision"},
};

bool has_kind(const Json& value, Kind kind) {
  switch (kind) {
    case Kind::whole:
      return value.is_int();
    case Kind::real:
      return value.is_number();
    case Kind::truth:
      return value.is_bool();
    case Kind::text:
      return value.is_string();
  }
  return false;
}

const char* kind_name(Kind kind) {
  constexpr const char* names[] = {"an integer", "a number", "true or false", "a string"};
  return names[static_cast<size_t>(kind)];
}

std::string words_of(const Json& list) {
  if (list.is_string()) return list.as_string();
  std::vector<std::string> words;
  for (const Json& word : list.as_array()) words.push_back(word.as_string());
  return fmt::format("{}", fmt::join(words, ", "));
}

// full | block N | selective | [modules]
void set_recompute(const Json& value, std::string_view where, Json& settings) {
  const auto set = [&](std::string_view key, Json to) {
    settings[fmt::format("model.{}", key)] = std::move(to);
  };
  if (value.is_array()) {
    set("recompute_granularity", "selective");
    return set("recompute_modules", value);
  }
  const std::string text = value.as_string();
  if (text == "selective") return set("recompute_granularity", "selective");
  int64_t layers = 1;
  constexpr std::string_view block = "block ";
  const bool by_block = text.starts_with(block);
  if (by_block) std::from_chars(text.data() + block.size(), text.data() + text.size(), layers);
  if (text != "full" && text != fmt::format("block {}", layers))
    throw ConfigError(fmt::format(
        "{}: recompute is '{}' (expected full, block N, selective or a list of modules)", where, text));
  set("recompute_granularity", "full");
  set("recompute_method", by_block ? "block" : "uniform");
  set("recompute_num_layers", layers);
}

}  // namespace

void RecipeRow::add(const Json& layer, std::string_view where) {
  for (const auto& [key, value] : layer.as_object()) {
    const auto shorthand = std::find_if(kShorthands.begin(), kShorthands.end(),
                                        [&](const Shorthand& s) { return s.key == key; });
    if (shorthand != kShorthands.end()) {
      if (!has_kind(value, shorthand->kind))
        throw ConfigError(fmt::format("{}: {} is {} (expected {})", where, key, value.type_name(),
                                      kind_name(shorthand->kind)));
      settings[std::string(shorthand->setting)] = value;
    } else if (key == "recompute") {
      set_recompute(value, where, settings);
    } else if (key == "flex") {
      settings["model.moe_token_dispatcher_type"] = "flex";
      settings["model.moe_flex_dispatcher_backend"] = value;
    } else if (key == "cuda_graphs") {
      const std::string parts = words_of(value);
      notes.push_back(
          fmt::format("Bridge captures CUDA graphs of {}; here --cuda-graph-impl full_iteration captures "
                      "whole steps, and is off unless asked for",
                      parts == "full"      ? "whole layers"
                      : parts == "unnamed" ? "parts of a layer"
                                           : parts));
    } else if (key == "note") {
      notes.push_back(value.as_string());
    } else if (key == "needs") {
      needs = value.as_string();
    } else if (Catalog::all().find(key) || find_compat_key(key)) {
      settings[key] = value;
    } else {
      std::vector<std::string> known = Catalog::all().names();
      for (const Shorthand& s : kShorthands) known.emplace_back(s.key);
      throw ConfigError(
          fmt::format("{}: there is no setting {}; {}", where, key, did_you_mean(nearest(key, known))));
    }
  }
}

int64_t RecipeRow::integer(std::string_view name, int64_t otherwise) const {
  const Json* value = settings.find(name);
  return value ? value->as_int() : otherwise;
}

std::string precision_preset_of(std::string_view precision) {
  if (precision == "fp8cs") return "bf16_with_fp8_current_scaling_mixed";
  if (precision == "fp8ds") return "bf16_with_fp8_delayed_scaling_mixed";
  if (precision == "fp8sc") return "bf16_with_fp8_subchannel_scaling_mixed";
  if (precision == "fp8mx") return "bf16_with_mxfp8_mixed";
  if (precision == "nvfp4") return "bf16_with_nvfp4_mixed";
  return std::string(precision) + "_mixed";
}

}  // namespace megatron
