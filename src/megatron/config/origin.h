#pragma once

#include <string>

namespace megatron {

// Where a value came from, weakest first.
enum class Source { builtin, derived, hf, recipe, file, flag, override_value };

struct Origin {
  Source source = Source::builtin;
  std::string where;  // "--lr 3e-4", "train.yaml:12", "4 x hidden_size"; empty for a default
};

// "default", "flag --lr 3e-4", "derived: 4 x hidden_size".
std::string show_origin(const Origin& origin);
const char* source_name(Source source);  // "default", "derived", "--hf", "recipe", "file", "flag", "override"

}  // namespace megatron
