#include "megatron/base/crc32c.h"

#include <array>

namespace megatron {
namespace {

constexpr std::array<uint32_t, 256> crc32c_table() {
  constexpr uint32_t reversed_polynomial = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? reversed_polynomial : 0);
    table[byte] = rest;
  }
  return table;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  static constexpr std::array<uint32_t, 256> table = crc32c_table();
  uint32_t sum = ~0u;
  for (const std::byte byte : bytes) sum = table[(sum ^ std::to_integer<uint32_t>(byte)) & 0xff] ^ (sum >> 8);
  return ~sum;
}

}  // namespace megatron
