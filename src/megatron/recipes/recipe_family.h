#pragma once

#include <vector>

#include "megatron/recipes/recipe.h"
#include "megatron/recipes/recipe_files.h"

namespace megatron {

// The recipes of a family's file, in its order, its tiny one last. `bases` is bases.yaml. A ConfigError names
// the file and the row that make no sense.
std::vector<Recipe> read_recipe_family(const RecipeFile& file, const Json& bases);

}  // namespace megatron
