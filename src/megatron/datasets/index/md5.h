#pragma once

#include <string>
#include <string_view>

namespace megatron {

// MD5 as 32 hexadecimal digits: names of cached indices, nothing secret.
std::string md5_hex(std::string_view text);

}  // namespace megatron
