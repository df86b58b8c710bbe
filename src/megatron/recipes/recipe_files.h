#pragma once

#include <span>
#include <string_view>

namespace megatron {

// A file of the folder recipes/, as it was compiled in.
struct RecipeFile {
  std::string_view name;  // "llama"; "bases" is what all begin with
  std::string_view text;
};

// All of them, by name.
std::span<const RecipeFile> recipe_files();

}  // namespace megatron
