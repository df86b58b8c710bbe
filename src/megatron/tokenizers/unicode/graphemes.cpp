#include "megatron/tokenizers/unicode/graphemes.h"

#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

bool extends(char32_t c) {
  return properties_of(c).mark() || c == 0x200C || c == 0x200D || c == 0xE33 || c == 0xEB3 || c == 0xFF9E ||
         c == 0xFF9F || (c >= 0x1F3FB && c <= 0x1F3FF) || (c >= 0xE0020 && c <= 0xE007F);
}

bool control(char32_t c) {
  if (c == 0x200C || c == 0x200D) return false;
  const Category category = properties_of(c).category();
  return category == Category::Cc || category == Category::Cf || category == Category::Zl ||
         category == Category::Zp;
}

bool prepends(char32_t c) { return (c >= 0x600 && c <= 0x605) || c == 0x6DD || c == 0x70F; }

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
