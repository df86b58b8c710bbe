#pragma once

#include <string>
#include <string_view>

#include "megatron/base/json.h"

namespace megatron::tokenizers {

// The value of a key, or another where it is absent or null; an Error where it has another type.
bool bool_or(const Json& settings, std::string_view key, bool otherwise);
int64_t int_or(const Json& settings, std::string_view key, int64_t otherwise);
std::string string_or(const Json& settings, std::string_view key, std::string_view otherwise);

// The character that a setting holds; an Error where it is not exactly one.
std::string one_character(const Json& settings, std::string_view key, std::string_view otherwise);

// The bytes of standard base64; an Error where it is malformed.
std::string decode_base64(std::string_view text);

}  // namespace megatron::tokenizers
