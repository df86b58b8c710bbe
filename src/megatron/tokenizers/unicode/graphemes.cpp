#include "megatron/tokenizers/unicode/graphemes.h"

#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

// Spacing marks that UAX #29 leaves out of the property SpacingMark.
bool stands_alone(char32_t c) {
  return c == 0x102B || c == 0x102C || c == 0x1038 || (c >= 0x1062 && c <= 0x1064) ||
         (c >= 0x1067 && c <= 0x106D) || c == 0x1083 || (c >= 0x1087 && c <= 0x108C) || c == 0x108F ||
         (c >= 0x109A && c <= 0x109C) || c == 0x1A61 || c == 0x1A63 || c == 0x1A64 || c == 0xAA7B ||
         c == 0xAA7D || c == 0x11720 || c == 0x11721;
}

bool extends(char32_t c) {
  return (properties_of(c).mark() && !stands_alone(c)) || c == 0x200C || c == 0x200D || c == 0xE33 ||
         c == 0xEB3 || c == 0xFF9E || c == 0xFF9F || (c >= 0x1F3FB && c <= 0x1F3FF) ||
         (c >= 0xE0020 && c <= 0xE007F);
}

bool control(char32_t c) {
  if (c == 0x200C || c == 0x200D) return false;
  const Category category = properties_of(c).category();
  return category == Category::Cc || category == Category::Cf || category == Category::Zl ||
         category == Category::Zp;
}

bool prepends(char32_t c) {
  return (c >= 0x600 && c <= 0x605) || c == 0x6DD || c == 0x70F || c == 0x890 || c == 0x891 || c == 0x8E2 ||
         c == 0xD4E || c == 0x110BD || c == 0x110CD || c == 0x111C2 || c == 0x111C3 || c == 0x1193F ||
         c == 0x11941 || c == 0x11A3A || (c >= 0x11A84 && c <= 0x11A89) || c == 0x11D46 || c == 0x11F02;
}

}  // namespace

size_t grapheme_length(std::string_view text) {
  if (text.starts_with("\r\n")) return 2;
  Utf8Char c = decode_utf8(text);
  size_t at = c.length;
  while (prepends(c.point) && at < text.size()) {
    const Utf8Char next = decode_utf8(text.substr(at));
    if (control(next.point) && !prepends(next.point)) return at;
    c = next;
    at += next.length;
  }
  if (control(c.point)) return at;
  while (at < text.size()) {
    const Utf8Char next = decode_utf8(text.substr(at));
    if (!extends(next.point)) break;
    at += next.length;
  }
  return at;
}

}  // namespace megatron::tokenizers
