#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/sources/sources.h"
#include "megatron/recipes/recipe.h"

namespace megatron {

// Every recipe, family by family.
std::vector<Recipe> all_recipes();

// The recipe that a name means: its own, Bridge's function ("llama3_8b_pretrain_config"), or model and task
// alone, which stand for the first in bf16 on H100. A ConfigError with the nearest names where there is none.
Recipe find_recipe(std::string_view name);

// What --recipe NAME hands to the configuration. A ConfigError where the recipe needs what this build lacks
// and no setting of it would say so.
ConfigText read_recipe(const std::string& name);

}  // namespace megatron
