#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

// A name for a set of number formats: bf16_mixed, bf16_with_mxfp8_mixed and so on.
struct PrecisionPreset {
  std::string name;
  std::vector<std::pair<std::string, Json>> settings;
  std::string lacks = {};  // what of it is not built
  bool fp8_param = false;  // upstream also keeps parameters in fp8
};

// Dashes and underscores are alike; fp32, bf16, fp16 and fp8 are short names. nullptr where there is none.
const PrecisionPreset* find_precision_preset(std::string_view name);
std::vector<std::string> precision_preset_names();  // those that are built

}  // namespace megatron
