#include "megatron/recipes/recipe_catalogue.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"
#include "megatron/config/sources/yaml.h"
#include "megatron/recipes/recipe_family.h"

namespace megatron {
namespace {

bool is_base_file(const RecipeFile& file) { return file.name == "bases"; }

// The one that Bridge's short names stand for.
bool is_first_choice(const Recipe& recipe, std::string_view short_name) {
  return recipe.gpu == "h100" && recipe.precision == "bf16" && recipe.variant.empty() &&
         !recipe.is_benchmark() && recipe.model + "_" + recipe.task == short_name;
}

}  // namespace

std::vector<Recipe> all_recipes() {
  const std::span<const RecipeFile> files = recipe_files();
  const auto base = std::find_if(files.begin(), files.end(), is_base_file);
  require(base != files.end(), "recipes/bases.yaml is not compiled in");
  const Json bases = parse_yaml(std::string(base->text), "recipes/bases.yaml");
  std::vector<Recipe> recipes;
  for (const RecipeFile& file : files) {
    if (is_base_file(file)) continue;
    for (Recipe& recipe : read_recipe_family(file, bases)) recipes.push_back(std::move(recipe));
  }
  return recipes;
}

Recipe find_recipe(std::string_view name) {
  std::string_view wanted = name;
  constexpr std::string_view suffix = "_config";
  if (wanted.ends_with(suffix)) wanted.remove_suffix(suffix.size());
  std::vector<Recipe> recipes = all_recipes();
  std::vector<std::string> names;
  for (Recipe& recipe : recipes) {
    if (recipe.name == wanted) return std::move(recipe);
    names.push_back(recipe.name);
  }
  for (Recipe& recipe : recipes)
    if (is_first_choice(recipe, wanted)) return std::move(recipe);
  std::vector<std::string> near = nearest(wanted, names);
  // A model's name alone, or the beginning of a longer one.
  for (const std::string& other : names)
    if (near.size() < 4 && other.starts_with(wanted)) near.push_back(other);
  const std::string hint = did_you_mean(near);
  throw ConfigError(fmt::format("there is no recipe {}; {}megatron recipes list shows all", name,
                                hint.empty() ? "" : hint + " "));
}

ConfigText read_recipe(const std::string& name) {
  const Recipe recipe = find_recipe(name);
  const bool told_by_a_setting =
      recipe.task == "peft" || recipe.precision == "fp8mx" || recipe.precision == "nvfp4";
  if (!recipe.needs.empty() && !told_by_a_setting)
    throw ConfigError(fmt::format("{} needs {}, which this build lacks", recipe.name, recipe.needs));
  return {recipe.name, recipe_yaml(recipe)};
}

}  // namespace megatron
