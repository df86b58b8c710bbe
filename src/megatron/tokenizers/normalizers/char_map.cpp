#include "megatron/tokenizers/normalizers/char_map.h"

#include <cstring>

#include "megatron/base/error.h"

namespace megatron::tokenizers {

CharMap::CharMap(std::string_view blob, std::string_view origin) {
  if (blob.empty()) return;
  uint32_t trie_bytes = 0;
  require(blob.size() > 4, "{}: the character map is cut short ({} bytes)", origin, blob.size());
  std::memcpy(&trie_bytes, blob.data(), 4);
  require(trie_bytes <= blob.size() - 4 && trie_bytes % 4 == 0 && trie_bytes > 0,
          "{}: the trie of the character map has {} bytes, the map {}", origin, trie_bytes, blob.size());
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), blob.data() + 4, trie_bytes);
  replacements_ = blob.substr(4 + trie_bytes);
}

template <class Visit>
void CharMap::prefixes(std::string_view text, Visit visit) const {
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  size_t node = 0;
  node ^= offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size()) return;
    const uint32_t unit = units_[node];
    if ((unit & ((1u << 31) | 0xFF)) != byte) return;
    node ^= offset(unit);
    if (node >= units_.size()) return;
    if ((unit >> 8 & 1) != 0 && !visit(i + 1, units_[node] & 0x7FFFFFFF)) return;
  }
}

CharMap::Match CharMap::replacement(size_t length, uint32_t offset) const {
  if (offset >= replacements_.size()) return {length, {}};
  const char* text = replacements_.data() + offset;
  return {length, {text, strnlen(text, replacements_.size() - offset)}};
}

CharMap::Match CharMap::longest(std::string_view text) const {
  size_t length = 0;
  uint32_t value = 0;
  if (!empty())
    prefixes(text, [&](size_t at, uint32_t offset) {
      length = at;
      value = offset;
      return true;
    });
  return length == 0 ? Match{} : replacement(length, value);
}

CharMap::Match CharMap::shortest(std::string_view text) const {
  Match match;
  if (!empty())
    prefixes(text, [&](size_t at, uint32_t offset) {
      match = replacement(at, offset);
      return false;
    });
  return match;
}

}  // namespace megatron::tokenizers
