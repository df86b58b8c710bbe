#pragma once

#include <string>

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// str.format of Python.
std::string brace_format(Runtime& runtime, std::string_view format, const Arguments& arguments);

}  // namespace megatron::chat
