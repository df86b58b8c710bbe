#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::tokenizers {

struct Utf8Char {
  char32_t point;   // U+FFFD where the bytes are malformed
  uint32_t length;  // bytes read; of malformed ones the longest prefix that some character has
  bool valid;
};

// The character at the front of non-empty text.
inline Utf8Char decode_utf8(const char* text, size_t size) {
  const auto* s = reinterpret_cast<const unsigned char*>(text);
  const unsigned char a = s[0];
  if (a < 0x80) return {a, 1, true};
  const auto trail = [&](size_t i, unsigned low, unsigned high) {
    return i < size && s[i] >= low && s[i] <= high;
  };
  if (a >= 0xC2 && a < 0xE0) {
    if (trail(1, 0x80, 0xBF)) return {char32_t((a & 31) << 6 | (s[1] & 63)), 2, true};
  } else if (a >= 0xE0 && a < 0xF0) {
    if (!trail(1, a == 0xE0 ? 0xA0 : 0x80, a == 0xED ? 0x9F : 0xBF)) return {0xFFFD, 1, false};
    if (!trail(2, 0x80, 0xBF)) return {0xFFFD, 2, false};
    return {char32_t((a & 15) << 12 | (s[1] & 63) << 6 | (s[2] & 63)), 3, true};
  } else if (a >= 0xF0 && a < 0xF5) {
    if (!trail(1, a == 0xF0 ? 0x90 : 0x80, a == 0xF4 ? 0x8F : 0xBF)) return {0xFFFD, 1, false};
    if (!trail(2, 0x80, 0xBF)) return {0xFFFD, 2, false};
    if (!trail(3, 0x80, 0xBF)) return {0xFFFD, 3, false};
    return {char32_t((a & 7) << 18 | (s[1] & 63) << 12 | (s[2] & 63) << 6 | (s[3] & 63)), 4, true};
  }
  return {0xFFFD, 1, false};
}

inline Utf8Char decode_utf8(std::string_view text) { return decode_utf8(text.data(), text.size()); }

// Appends a code point; surrogates and points above 10FFFF as U+FFFD.
void append_utf8(std::string& text, char32_t point);

// The number of bytes of a code point in UTF-8.
constexpr uint32_t utf8_length(char32_t point) {
  return point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
}

bool is_utf8(std::string_view text);

// Text with every malformed sequence replaced by U+FFFD, as Rust's from_utf8_lossy and Python's
// errors="replace" do.
std::string to_utf8_lossy(std::string_view bytes);

}  // namespace megatron::tokenizers
