#pragma once

#include <string>
#include <string_view>

namespace megatron::chat {

// Resolves the escapes of a text literal's inside as Python does. Returns the problem, "" where there is
// none.
std::string unescape(std::string_view inside, std::string& text);

}  // namespace megatron::chat
