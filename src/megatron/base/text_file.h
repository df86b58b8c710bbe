#pragma once

#include <string>

namespace megatron {

// The whole content of a file or pipe; an Error names the path and the cause.
std::string read_text_file(const std::string& path);

}  // namespace megatron
