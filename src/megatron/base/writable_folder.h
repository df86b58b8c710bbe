#pragma once

#include <string>
#include <string_view>

namespace megatron {

// Makes the folder that `flag` asks for where it is not there; a ConfigError where it cannot be written.
// Asked before the work, so that hours of it are not lost to a misspelt path.
void require_folder(std::string_view flag, const std::string& folder);
// The same of the folder of a file, which itself must be none.
void require_file_place(std::string_view flag, const std::string& file);

}  // namespace megatron
