#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

// One `key: value` of a YAML file's sections.
struct YamlEntry {
  std::string name;  // "model.hidden_size", or "mixed_precision" for a value at the top
  Json value;
  int line;
};

// The sections of a configuration file, flattened; a malformed file gives an Error that begins with `origin`
// and names the line. Anchors and << work; a key that stands twice is an error.
std::vector<YamlEntry> read_yaml(const std::string& text, std::string_view origin);

// Any YAML document as a value.
Json parse_yaml(const std::string& text, std::string_view origin);

}  // namespace megatron
