#pragma once

#include <span>
#include <string>
#include <string_view>

#include "megatron/base/json.h"
#include "megatron/config/schema/value.h"

namespace megatron {

struct ParsedValue {
  Json value;
  ValidationError error;
};

// A word without quotes, as YAML and overrides read it: null, true, 12, 1e-4, inf; anything else is text.
Json parse_scalar(std::string_view word);

// The right side of an override: a scalar, 'quoted' or "quoted" text, [lists], {mappings: of values}. ${a.b}
// stays as it is, for interpolate().
ParsedValue parse_override_value(std::string_view text);

// The words after a flag, read as its setting wants them: numbers may be separated by commas and stand in
// brackets.
ParsedValue parse_flag_values(const Setting& setting, std::span<const std::string> words);

// A number, or a list in Python's notation: 2, [0,1,1], ([0]*3+[1]*5)*2.
ParsedValue parse_pattern(std::string_view text);

}  // namespace megatron
