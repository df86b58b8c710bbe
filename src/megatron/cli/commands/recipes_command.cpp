#include "megatron/cli/commands.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"
#include "megatron/cli/flags.h"
#include "megatron/recipes/recipe_catalogue.h"

namespace megatron {
namespace {

struct Options {
  std::string family, model, task, gpu, precision;
  bool json = false, perf = false;
};

std::vector<Flag> flags(Options& options) {
  return {text_flag("--family", "NAME", "only of this family, such as llama", options.family),
          text_flag("--model", "NAME", "only of this model, such as llama3_8b", options.model),
          text_flag("--task", "TASK", "only pretrain, sft or peft", options.task),
          text_flag("--gpu", "GPU", "only for this GPU: h100, gb200, gb300 or cpu", options.gpu),
          text_flag("--precision", "P", "only in bf16, fp8cs, fp8ds, fp8mx, fp8sc, nvfp4 or fp32",
                    options.precision),
          switch_flag("--perf", "list benchmarks too, whose names begin with perf/", options.perf),
          switch_flag("--json", "one JSON document", options.json)};
}

// A filter that no recipe could pass is a slip of the pen.
void check_filter(std::string_view flag, const std::string& wanted, const std::vector<Recipe>& recipes,
                  std::string Recipe::*field) {
  if (wanted.empty()) return;
  std::vector<std::string> known;
  for (const Recipe& recipe : recipes)
    if (std::find(known.begin(), known.end(), recipe.*field) == known.end()) known.push_back(recipe.*field);
  if (std::find(known.begin(), known.end(), wanted) != known.end()) return;
  const std::string near = did_you_mean(nearest(wanted, known));
  throw UsageError(
      fmt::format("recipes: {} {}: no recipe has it{}{}", flag, wanted, near.empty() ? "" : "; ", near));
}

std::vector<Recipe> chosen(const Options& options) {
  std::vector<Recipe> recipes = all_recipes();
  check_filter("--family", options.family, recipes, &Recipe::family);
  check_filter("--model", options.model, recipes, &Recipe::model);
  check_filter("--task", options.task, recipes, &Recipe::task);
  check_filter("--gpu", options.gpu, recipes, &Recipe::gpu);
  check_filter("--precision", options.precision, recipes, &Recipe::precision);
  const auto differs = [](const std::string& wanted, const std::string& own) {
    return !wanted.empty() && wanted != own;
  };
  std::erase_if(recipes, [&](const Recipe& r) {
    return (r.is_benchmark() && !options.perf) || differs(options.family, r.family) ||
           differs(options.model, r.model) || differs(options.task, r.task) || differs(options.gpu, r.gpu) ||
           differs(options.precision, r.precision);
  });
  return recipes;
}

Json summary(const Recipe& recipe) {
  Json row = Json::object();
  row["name"] = recipe.name;
  row["family"] = recipe.family;
  row["model"] = recipe.model;
  row["task"] = recipe.task;
  row["gpus"] = recipe.gpus;
  row["gpu"] = recipe.gpu;
  row["precision"] = recipe.precision;
  row["variant"] = recipe.variant;
  row["hf"] = recipe.hf;
  row["needs"] = recipe.needs.empty() ? Json() : Json(recipe.needs);
  return row;
}

// "tp 4, pp 2": how the model is split; "" where it is not.
std::string layout_of(const Recipe& recipe) {
  constexpr std::pair<const char*, const char*> kAxes[] = {{"tp", "tensor_model_parallel_size"},
                                                           {"pp", "pipeline_model_parallel_size"},
                                                           {"vp", "virtual_pipeline_model_parallel_size"},
                                                           {"cp", "context_parallel_size"},
                                                           {"ep", "expert_model_parallel_size"}};
  std::string text;
  for (const auto& [axis, key] : kAxes)
    if (const Json* value = recipe.settings.find(std::string("model.") + key); value && value->as_int() > 1)
      text += fmt::format("{}{}{}", text.empty() ? "" : " ", axis, value->as_int());
  return text;
}

void list(Invocation& invocation, const Options& options) {
  const std::vector<Recipe> recipes = chosen(options);
  if (options.json) {
    Json rows = Json::array();
    for (const Recipe& recipe : recipes) rows.push_back(summary(recipe));
    fmt::print(invocation.out, "{}\n", rows.dump(2));
    return;
  }
  size_t width = 0, layout = 0;
  for (const Recipe& recipe : recipes) {
    width = std::max(width, recipe.name.size());
    layout = std::max(layout, layout_of(recipe).size());
  }
  for (const Recipe& recipe : recipes) {
    const Json* length = recipe.settings.find("model.seq_length");
    fmt::print(invocation.out, "{:<{}}  {:<{}}  {:>6} tokens{}\n", recipe.name, width, layout_of(recipe),
               layout, length ? length->as_int() : 0, recipe.needs.empty() ? "" : "  needs " + recipe.needs);
  }
  fmt::print(invocation.out, "{} recipes{}\n", recipes.size(),
             options.perf ? "" : "; --perf lists benchmarks too");
}

void show(Invocation& invocation, const Options& options, const std::string& name) {
  const Recipe recipe = find_recipe(name);
  if (!options.json) {
    fmt::print(invocation.out, "{}", recipe_yaml(recipe));
    return;
  }
  Json document = summary(recipe);
  Json& notes = document["notes"] = Json::array();
  for (const std::string& note : recipe.notes) notes.push_back(note);
  document["config"] = recipe.config;
  document["settings"] = recipe_settings(recipe);
  fmt::print(invocation.out, "{}\n", document.dump(2));
}

}  // namespace

std::string recipes_help() {
  Options options;
  return "usage: megatron recipes list [options]\n"
         "       megatron recipes show NAME [--json]\n"
         "\n"
         "The catalogue of configurations: a model, a task, and how it is laid out over GPUs. `show` prints\n"
         "what --recipe NAME sets, as a --config file. Every command that takes settings takes --recipe "
         "NAME;\n"
         "--config, flags and section.key=value change what it says.\n"
         "\n"
         "names:\n"
         "  {model}_{task}_{N}gpu_{gpu}_{precision}[_{variant}]\n"
         "                  those of Megatron Bridge, with or without _config\n"
         "  {model}_{task}  the first of them in bf16 on H100\n"
         "  tiny/{family}   a model of that kind which trains on a CPU in seconds\n"
         "\n" +
         flags_help(flags(options));
}

int run_recipes(Invocation& invocation) {
  Options options;
  const std::vector<std::string> words = parse_flags("recipes", invocation.args, flags(options));
  if (words.size() == 1 && words[0] == "list") {
    list(invocation, options);
  } else if (words.size() == 2 && words[0] == "show") {
    show(invocation, options, words[1]);
  } else {
    throw UsageError("recipes: say what to do: megatron recipes list, or megatron recipes show NAME");
  }
  return 0;
}

}  // namespace megatron
