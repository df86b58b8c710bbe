#pragma once

#include <span>
#include <string>
#include <string_view>

#include "megatron/base/json.h"
#include "megatron/config/schema/setting.h"

namespace megatron {

// What is wrong with a value, and how to put it right; empty where nothing is.
struct ValidationError {
  std::string reason;
  std::string fix;
  explicit operator bool() const { return !reason.empty(); }
};

// Stores `value` in the struct at `object` after checking type, range and choices. Null gives the default of
// `defaults`, a struct of the same kind.
ValidationError store_value(const Setting& setting, void* object, const Json& value, const void* defaults);
Json read_value(const Setting& setting, const void* object);

// A value as it is shown to people: none, true, 3e-4, [1, 2], text without quotes.
std::string show_value(const Json& value);

// "an integer of at least 1", "LayerNorm or RMSNorm", for messages and help.
std::string describe_values(const Setting& setting);

}  // namespace megatron
