#pragma once

#include <string>
#include <string_view>

namespace megatron {

// "decoder.layers.0.mlp.experts.linear_fc1": what upstream calls the module of a weight, which for experts
// has one name less.
inline std::string module_of(std::string_view parameter) {
  std::string name(parameter.substr(0, parameter.rfind('.')));
  if (const size_t at = name.find(".experts.experts."); at != std::string::npos) name.erase(at, 8);
  return name;
}

}  // namespace megatron
