#pragma once

#include <cstdint>
#include <span>

namespace megatron::chat {

// Every `step`-th code point from first to last.
struct CodeRange {
  uint32_t first, last, step;
};
// The same, each mapped to itself plus `delta`.
struct CaseRange {
  uint32_t first, last, step;
  int32_t delta;
};
// One code point that becomes two or three; the rest are zero.
struct CaseSpecial {
  uint32_t point, image[3];
};

// Sorted by code point, as Python's str.isalpha and its kin answer for single characters.
struct UnicodeProperties {
  std::span<const CodeRange> alpha, decimal, digit, numeric, unprintable, lower, upper, title;
};
UnicodeProperties unicode_properties();

// Sorted by code point. `title` holds only what differs from `upper`, `fold` what differs from `lower`.
struct CaseMapping {
  std::span<const CaseRange> simple;
  std::span<const CaseSpecial> special;
};
struct UnicodeCase {
  CaseMapping lower, upper, title, fold;
};
UnicodeCase unicode_case();

}  // namespace megatron::chat
