#pragma once

#include <bitset>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {

// A set of characters as ranges of code points.
using CodePoints = std::vector<std::pair<char32_t, char32_t>>;

// Sorted and joined.
CodePoints normal_points(CodePoints points);
// Normal, without surrogates and without what is above 10FFFF, which no text has.
CodePoints text_points(const CodePoints& points);

// What follows takes normal points.
bool contains(const CodePoints& points, char32_t point);
bool contains_all(const CodePoints& points, const CodePoints& others);
bool overlap(const CodePoints& a, const CodePoints& b);
// The bytes that their UTF-8 begins with.
std::bitset<256> first_bytes(const CodePoints& points);

// How bytes relate to one character of a set: they are one, they begin one, or neither.
enum class CharacterBytes { whole, part, none };
CharacterBytes match_character(const CodePoints& points, std::string_view bytes);

}  // namespace megatron
