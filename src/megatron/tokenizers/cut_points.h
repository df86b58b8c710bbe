#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

// Places inside a word that no piece spans, so that what stands before and behind is merged apart. In text
// without spaces, Chinese say, this turns long words that come once into short ones that come again and
// again.
class CutPoints {
 public:
  CutPoints() : pairs_(size_t{1} << (kBits - 6)) {}

  // Notes that these bytes are a piece.
  void add(std::string_view piece);

  // Whether some piece may have both characters beside each other; always true of two ASCII ones. `left` and
  // `right` are the bytes of the characters, the first one lowest, `last` and `first` the bytes that meet.
  bool joined(uint32_t left, uint32_t right, uint8_t last, uint8_t first) const {
    if (left < 0x80 && right < 0x80) return true;
    if (broken_[size_t{last} << 8 | first]) return true;
    const uint32_t place = hash(left, right);
    return pairs_[place >> 6] >> (place & 63) & 1;
  }

 private:
  static constexpr int kBits = 23;
  static uint32_t hash(uint32_t left, uint32_t right) {
    const uint64_t key = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15u;
    return static_cast<uint32_t>(key >> (64 - kBits));
  }

  std::vector<uint64_t> pairs_;  // a bit per hash of two characters; others may share it, which costs a cut
  std::bitset<65536> broken_;    // bytes that meet in a piece that has only a part of one of the characters
};

}  // namespace megatron::tokenizers
