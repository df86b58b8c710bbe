#pragma once

#include <string>
#include <string_view>

namespace megatron {

// Makes the folder that `flag` asks for where it is not there; a ConfigError where it cannot be written.
// Asked before the work, so that hours of it are not lost to a misspelt path.
void require_folder(std::string_view flag, const std::string& folder);

}  // namespace megatron
