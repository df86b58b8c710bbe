#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

// A set of code points, one bit each.
class CharSet {
 public:
  static constexpr char32_t kPoints = 0x110000;

  CharSet() : bits_(kPoints / 64) {}
  static CharSet all() {
    CharSet set;
    set.invert();
    return set;
  }
  // The set of that name in \p{NAME}; an Error names what is not known.
  static CharSet property(std::string_view name);
  static CharSet spaces();
  static CharSet digits();
  // Oniguruma's \w; outside of classes it has Latin-1's digits and fractions, too.
  static CharSet word_characters(bool in_class);

  bool contains(char32_t point) const { return bits_[point >> 6] >> (point & 63) & 1; }
  void add(char32_t point) { bits_[point >> 6] |= uint64_t{1} << (point & 63); }
  void add_range(char32_t first, char32_t last) {
    for (char32_t point = first; point <= last && point < kPoints; ++point) add(point);
  }
  void add(const CharSet& other) {
    for (size_t i = 0; i < bits_.size(); ++i) bits_[i] |= other.bits_[i];
  }
  void intersect(const CharSet& other) {
    for (size_t i = 0; i < bits_.size(); ++i) bits_[i] &= other.bits_[i];
  }
  void invert() {
    for (uint64_t& word : bits_) word = ~word;
  }
  // Adds what differs from a member in case alone.
  void ignore_case();

 private:
  std::vector<uint64_t> bits_;
};

}  // namespace megatron::tokenizers
