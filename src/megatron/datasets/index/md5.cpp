#include "megatron/datasets/index/md5.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace megatron {
namespace {

constexpr std::array<int, 16> kShifts = {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};

void add_block(std::array<uint32_t, 4>& state, const char* block, const std::array<uint32_t, 64>& sines) {
  uint32_t words[16];
  std::memcpy(words, block, 64);
  auto [a, b, c, d] = state;
  for (uint32_t i = 0; i < 64; ++i) {
    uint32_t mixed, word;
    switch (i / 16) {
      case 0:
        mixed = (b & c) | (~b & d);
        word = i;
        break;
      case 1:
        mixed = (d & b) | (~d & c);
        word = 5 * i + 1;
        break;
      case 2:
        mixed = b ^ c ^ d;
        word = 3 * i + 5;
        break;
      default:
        mixed = c ^ (b | ~d);
        word = 7 * i;
    }
    const uint32_t sum = a + mixed + sines[i] + words[word % 16];
    a = d;
    d = c;
    c = b;
    b += std::rotl(sum, kShifts[i / 16 * 4 + i % 4]);
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
}

}  // namespace

std::string md5_hex(std::string_view text) {
  std::array<uint32_t, 64> sines;
  for (size_t i = 0; i < 64; ++i)
    sines[i] = static_cast<uint32_t>(std::fabs(std::sin(static_cast<double>(i + 1))) * 4294967296.0);
  std::string padded(text);
  padded += '\x80';
  padded.resize((padded.size() + 8 + 63) / 64 * 64 - 8, '\0');
  const uint64_t bits = uint64_t{text.size()} * 8;
  padded.append(reinterpret_cast<const char*>(&bits), 8);
  std::array<uint32_t, 4> state = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u};
  for (size_t begin = 0; begin < padded.size(); begin += 64) add_block(state, padded.data() + begin, sines);
  std::string hex;
  for (uint32_t word : state)
    for (int byte = 0; byte < 4; ++byte) hex += fmt::format("{:02x}", (word >> (8 * byte)) & 0xff);
  return hex;
}

}  // namespace megatron
