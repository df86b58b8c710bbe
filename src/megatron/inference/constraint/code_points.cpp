#include "megatron/inference/constraint/code_points.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

// The first range that ends at `point` or behind it.
CodePoints::const_iterator range_from(const CodePoints& points, char32_t point) {
  return std::lower_bound(points.begin(), points.end(), point,
                          [](const auto& range, char32_t value) { return range.second < value; });
}

bool any_between(const CodePoints& points, char32_t low, char32_t high) {
  const auto range = range_from(points, low);
  return low <= high && range != points.end() && range->first <= high;
}

// Code points whose UTF-8 has this many bytes.
constexpr std::array<std::pair<char32_t, char32_t>, 5> kOfLength = {
    {{0, 0}, {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, 0x10FFFF}}};

size_t length_of(uint8_t first) {
  return first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

}  // namespace

CodePoints normal_points(CodePoints points) {
  std::sort(points.begin(), points.end());
  CodePoints joined;
  for (auto [first, last] : points) {
    if (!joined.empty() && first <= joined.back().second + 1)
      joined.back().second = std::max(joined.back().second, last);
    else
      joined.emplace_back(first, last);
  }
  return joined;
}

CodePoints text_points(const CodePoints& points) {
  CodePoints kept;
  for (auto [first, last] : normal_points(points)) {
    if (first < 0xD800) kept.emplace_back(first, std::min<char32_t>(last, 0xD7FF));
    if (last > 0xDFFF && first <= 0x10FFFF)
      kept.emplace_back(std::max<char32_t>(first, 0xE000), std::min<char32_t>(last, 0x10FFFF));
  }
  return kept;
}

bool contains(const CodePoints& points, char32_t point) { return any_between(points, point, point); }

bool contains_all(const CodePoints& points, const CodePoints& others) {
  return std::ranges::all_of(others, [&](const auto& other) {
    const auto range = range_from(points, other.first);
    return range != points.end() && range->first <= other.first && range->second >= other.second;
  });
}

bool overlap(const CodePoints& a, const CodePoints& b) {
  return std::ranges::any_of(b, [&](const auto& range) { return any_between(a, range.first, range.second); });
}

std::bitset<256> first_bytes(const CodePoints& points) {
  std::bitset<256> bytes;
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    bytes[static_cast<size_t>(byte)] = match_character(points, {&text, 1}) != CharacterBytes::none;
  }
  return bytes;
}

// Bytes that begin a character begin a range of them: whatever the bytes behind are.
CharacterBytes match_character(const CodePoints& points, std::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  const size_t length = length_of(first);
  if (bytes.size() > length) return CharacterBytes::none;
  char32_t value = length == 1 ? first : first & (0x7FU >> length);
  for (char c : bytes.substr(1)) {
    const auto byte = static_cast<uint8_t>(c);
    if ((byte & 0xC0U) != 0x80) return CharacterBytes::none;
    value = value << 6 | (byte & 0x3FU);
  }
  const auto missing = static_cast<uint32_t>(6 * (length - bytes.size()));
  const char32_t low = std::max<char32_t>(value << missing, kOfLength[length].first);
  const char32_t high = std::min<char32_t>(((value + 1) << missing) - 1, kOfLength[length].second);
  if (!any_between(points, low, high)) return CharacterBytes::none;
  return missing == 0 ? CharacterBytes::whole : CharacterBytes::part;
}

}  // namespace megatron
