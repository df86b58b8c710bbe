#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace megatron {

// CRC-32C (Castagnoli), the checksum of TFRecord files.
uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace megatron
