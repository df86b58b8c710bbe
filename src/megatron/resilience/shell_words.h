#pragma once

#include <string>

namespace megatron {

// A word as a shell reads it back.
std::string shell_quoted(const std::string& word);

}  // namespace megatron
