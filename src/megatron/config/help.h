#pragma once

#include <string>
#include <string_view>

#include "megatron/base/json.h"

namespace megatron {

// Every flag by section: `megatron help settings`.
std::string settings_help();

// What most runs give, for --help of the commands that take settings, and where the rest is told.
std::string settings_overview();

// What one setting does: `name` is a key ("model.hidden_size", "hidden_size"), a flag, or a section for all
// of it. Throws ConfigError with the nearest names where there is no such setting.
std::string explain_setting(std::string_view name);

// The same for programs: an object with name, text and, of a setting, help, default, flags and rules.
Json explain_json(std::string_view name);

}  // namespace megatron
