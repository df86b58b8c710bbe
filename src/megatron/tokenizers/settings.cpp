#include "megatron/tokenizers/settings.h"

#include "megatron/base/error.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

const Json* value_of(const Json& settings, std::string_view key) {
  const Json* value = settings.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

}  // namespace

bool bool_or(const Json& settings, std::string_view key, bool otherwise) {
  const Json* value = value_of(settings, key);
  return value ? value->as_bool() : otherwise;
}

int64_t int_or(const Json& settings, std::string_view key, int64_t otherwise) {
  const Json* value = value_of(settings, key);
  return value ? value->as_int() : otherwise;
}

std::string string_or(const Json& settings, std::string_view key, std::string_view otherwise) {
  const Json* value = value_of(settings, key);
  return value ? value->as_string() : std::string(otherwise);
}

std::string one_character(const Json& settings, std::string_view key, std::string_view otherwise) {
  std::string text = string_or(settings, key, otherwise);
  require(!text.empty() && decode_utf8(text).length == text.size(),
          "tokenizer.json: {} is '{}', expected one character", key, text);
  return text;
}

std::string decode_base64(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int held = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (char c : text) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    require(value >= 0, "base64: byte {:#04x} is no digit of it", static_cast<unsigned char>(c));
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8) bytes += static_cast<char>(bits >> (held -= 8));
  }
  require(text.size() % 4 != 1, "base64: the text is cut short ({} digits)", text.size());
  return bytes;
}

}  // namespace megatron::tokenizers
