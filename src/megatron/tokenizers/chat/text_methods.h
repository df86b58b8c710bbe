#pragma once

#include <string>
#include <string_view>

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// str.islower and isupper of Python: there is a cased character, and none of the other case.
bool is_lower_text(std::string_view bytes);
bool is_upper_text(std::string_view bytes);

// str.replace of Python; a negative count replaces all.
std::string replaced(Runtime& runtime, std::string_view bytes, std::string_view old, std::string_view fresh,
                     int64_t count);

}  // namespace megatron::chat
