#pragma once

#include <string>

namespace megatron {

// Where a value came from, weakest first.
enum class Source { builtin, derived, hf, recipe, file, flag, override_value, checkpoint };

struct Origin {
  Source source = Source::builtin;
  std::string where;  // "--lr 3e-4", "train.yaml:12", "4 x hidden_size"; empty for a default
};

// "default", "derived", "--hf", "recipe", "file", "flag", "override", "checkpoint".
inline const char* source_name(Source source) {
  constexpr const char* names[] = {"default", "derived", "--hf",     "recipe",
                                   "file",    "flag",    "override", "checkpoint"};
  return names[static_cast<size_t>(source)];
}

// "default", "flag --lr 3e-4", "derived: 4 x hidden_size".
inline std::string show_origin(const Origin& origin) {
  if (origin.where.empty()) return source_name(origin.source);
  return source_name(origin.source) + std::string(origin.source == Source::derived ? ": " : " ") +
         origin.where;
}

}  // namespace megatron
