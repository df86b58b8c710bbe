#include "megatron/tokenizers/cut_points.h"

#include <algorithm>

#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

uint32_t packed(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint32_t{static_cast<uint8_t>(bytes[i])} << 8 * i;
  return value;
}

}  // namespace

void CutPoints::add(std::string_view piece) {
  if (std::none_of(piece.begin(), piece.end(), [](char c) { return (c & 0x80) != 0; }))
    return;  // always joined
  // Where whole characters begin; 0 behind a byte that belongs to none.
  size_t left_size = 0;
  for (size_t i = 0; i < piece.size();) {
    const Utf8Char c = decode_utf8(piece.substr(i));
    if (i > 0) {
      if (left_size > 0 && c.valid) {
        const uint32_t place =
            hash(packed(piece.substr(i - left_size, left_size)), packed(piece.substr(i, c.length)));
        pairs_[place >> 6] |= uint64_t{1} << (place & 63);
      } else {
        broken_[size_t{static_cast<uint8_t>(piece[i - 1])} << 8 | static_cast<uint8_t>(piece[i])] = true;
      }
    }
    left_size = c.valid ? c.length : 0;
    i += c.valid ? c.length : 1;
  }
}

}  // namespace megatron::tokenizers
