#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

// What a recipe gathers from its layers: bases.yaml, its family, its size, its own row.
struct RecipeRow {
  Json settings = Json::object();  // {"optimizer.lr": 3e-4, ...}
  std::vector<std::string> notes;
  std::string needs;

  // Adds a layer in the words of the files, stronger than those before: `tp`, `recompute: full`, or any
  // section.key. A ConfigError that begins with `where` names a key that is unknown or has another type.
  void add(const Json& layer, std::string_view where);

  int64_t integer(std::string_view name, int64_t otherwise) const;  // a setting
};

// The preset of a precision as names of recipes write it: "fp8cs".
std::string precision_preset_of(std::string_view precision);

}  // namespace megatron
