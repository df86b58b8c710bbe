#include "megatron/tokenizers/unicode/utf8.h"

#include <cstring>

namespace megatron::tokenizers {

void append_utf8(std::string& text, char32_t point) {
  if (point >= 0x110000 || (point >= 0xD800 && point < 0xE000)) point = 0xFFFD;
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else if (point < 0x800) {
    text += static_cast<char>(0xC0 | point >> 6);
    text += static_cast<char>(0x80 | (point & 63));
  } else if (point < 0x10000) {
    text += static_cast<char>(0xE0 | point >> 12);
    text += static_cast<char>(0x80 | (point >> 6 & 63));
    text += static_cast<char>(0x80 | (point & 63));
  } else {
    text += static_cast<char>(0xF0 | point >> 18);
    text += static_cast<char>(0x80 | (point >> 12 & 63));
    text += static_cast<char>(0x80 | (point >> 6 & 63));
    text += static_cast<char>(0x80 | (point & 63));
  }
}

bool is_utf8(std::string_view text) {
  const auto* s = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  const auto trail = [&](size_t i) { return (s[i] & 0xC0) == 0x80; };
  for (size_t i = 0; i < size;) {
    if (i + 8 <= size) {
      uint64_t word;
      std::memcpy(&word, s + i, 8);
      if ((word & 0x8080808080808080u) == 0) {
        i += 8;
        continue;
      }
    }
    const unsigned char lead = s[i];
    if (lead < 0x80) {
      ++i;
    } else if (lead >= 0xE1 && lead <= 0xEC && i + 3 <= size && trail(i + 1) && trail(i + 2)) {
      i += 3;
    } else if (lead >= 0xC2 && lead < 0xE0 && i + 2 <= size && trail(i + 1)) {
      i += 2;
    } else {
      const Utf8Char c = decode_utf8(text.substr(i));
      if (!c.valid) return false;
      i += c.length;
    }
  }
  return true;
}

std::string to_utf8_lossy(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes.substr(i));
    if (c.valid)
      text.append(bytes, i, c.length);
    else
      text += "\xEF\xBF\xBD";
    i += c.length;
  }
  return text;
}

}  // namespace megatron::tokenizers
