#pragma once

#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/yaml.h"

namespace megatron {

// Megatron-LM's own files (--yaml-cfg) name flags in place of our settings: those of the model below
// `language_model`, those of its layout below `model_parallel`, all others at the top.
bool names_arguments(const std::vector<YamlEntry>& entries);

// What one of their lines sets: settings by name, or a row of flags that do not act here. Neither: it is not
// known. Environment variables (${NAME}) are put in.
struct YamlArgument {
  std::vector<std::pair<std::string, Json>> settings;
  const CompatRow* row = nullptr;
  bool left_out = false;  // null, or a switch that does not act here and is off
};
YamlArgument yaml_argument(const YamlEntry& entry);

}  // namespace megatron
