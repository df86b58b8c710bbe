#pragma once

#include <cstdint>
#include <string>

namespace megatron {

// A random id behind `prefix`: "cmpl-…".
std::string random_id(const char* prefix);
// Seconds since 1970.
int64_t seconds_now();

}  // namespace megatron
