#pragma once

#include <cstdint>
#include <string_view>

namespace megatron {

// The fixed part of an .idx file: magic, version, type code, number of sequences, entries of the document
// index. Numbers are little endian.
inline constexpr std::string_view kIdxMagic{"MMIDIDX\0\0", 9};
inline constexpr uint64_t kIdxVersion = 1;
inline constexpr int64_t kIdxHeaderBytes = 34;

}  // namespace megatron
