#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

// A flag that stands for several settings, or for one under a fixed value.
struct Shorthand {
  std::string_view flag;
  std::string_view settings;  // overrides, separated by blanks: "a.b=c d.e=f"; {} is the flag's value
  std::string_view help;
  bool yields = false;  // to whatever else gives one of these settings, in any order

  int values() const { return settings.find("{}") == std::string_view::npos ? 0 : 1; }
};

std::span<const Shorthand> shorthands();
const Shorthand* find_shorthand(std::string_view flag);
// What it gives to which settings; `value` is the flag's, where it has one.
std::vector<std::pair<std::string, Json>> settings_of(const Shorthand& shorthand, const Json& value);

// The flag that says what a layer specification of Megatron-LM (--spec MODULE NAME) makes of a model; empty
// where our models are like it anyway, or where it is not known.
std::string_view flag_of_spec(std::string_view name);

}  // namespace megatron
