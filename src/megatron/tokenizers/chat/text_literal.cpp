#include "megatron/tokenizers/chat/text_literal.h"

#include <fmt/core.h>

#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char low = static_cast<char>(c | 0x20);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

// The character of a one-letter escape; 0 where it is none.
char simple_escape(char c) {
  switch (c) {
    case '\\':
    case '\'':
    case '"':
      return c;
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'v':
      return '\v';
    default:
      return 0;
  }
}

}  // namespace

std::string unescape(std::string_view inside, std::string& text) {
  for (size_t i = 0; i < inside.size();) {
    if (inside[i] != '\\') {
      text += inside[i++];
      continue;
    }
    if (++i >= inside.size()) return "a text ends in a backslash";
    const char c = inside[i];
    if (const char simple = simple_escape(c)) {
      text += simple;
      ++i;
    } else if (c == '\n') {
      ++i;
    } else if (c >= '0' && c <= '7') {
      char32_t point = 0;
      for (int digits = 0; digits < 3 && i < inside.size() && inside[i] >= '0' && inside[i] <= '7'; ++digits)
        point = point * 8 + static_cast<char32_t>(inside[i++] - '0');
      append_code_point(text, point);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      char32_t point = 0;
      for (size_t k = 1; k <= digits; ++k) {
        const int digit = i + k < inside.size() ? hex_digit(inside[i + k]) : -1;
        if (digit < 0) return fmt::format("truncated \\{} escape in a text", c);
        point = point * 16 + static_cast<char32_t>(digit);
      }
      if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return "a text holds an invalid character";
      append_code_point(text, point);
      i += 1 + digits;
    } else if (c == 'N') {
      return "characters by name (\\N) are not supported";
    } else if (c &
               0x80) {  // Python turns the character into an escape first, whose backslash this one escapes
      const char32_t point = next_code_point(inside, i);
      text += '\\';
      text += point < 0x100     ? fmt::format("x{:02x}", uint32_t{point})
              : point < 0x10000 ? fmt::format("u{:04x}", uint32_t{point})
                                : fmt::format("U{:08x}", uint32_t{point});
    } else {
      text += '\\';
      text += c;
      ++i;
    }
  }
  return "";
}

}  // namespace megatron::chat
