#include "megatron/tokenizers/regex/char_set.h"

#include <unordered_set>

#include "megatron/base/error.h"
#include "megatron/tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {
namespace {

// Script Han of Unicode 16.0; of the scripts it is the one that published patterns name.
constexpr char32_t kHan[][2] = {
    {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},   {0x3007, 0x3007},
    {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},
    {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3}, {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739},
    {0x2B740, 0x2B81D}, {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
    {0x30000, 0x3134A}, {0x31350, 0x323AF}};

template <class Member>
CharSet set_of(Member member) {
  CharSet set;
  for (char32_t point = 0; point < CharSet::kPoints; ++point)
    if (member(properties_of(point))) set.add(point);
  return set;
}

}  // namespace

CharSet CharSet::property(std::string_view name) {
  if (name == "Han" || name == "Script=Han" || name == "sc=Han") {
    CharSet set;
    for (const auto& range : kHan) set.add_range(range[0], range[1]);
    return set;
  }
  const uint32_t mask = category_mask(name);
  if (mask == 0)
    fail(
        "regular expression: \\p{{{}}} is not known (categories as L or Lu, and Han); ask for it in an issue",
        name);
  return set_of([&](CharProperties p) { return (mask >> static_cast<int>(p.category()) & 1) != 0; });
}

CharSet CharSet::spaces() {
  return set_of([](CharProperties p) { return p.space(); });
}

CharSet CharSet::digits() {
  return set_of([](CharProperties p) { return p.category() == Category::Nd; });
}

// Oniguruma's word characters are Rust's without the joiners.
CharSet CharSet::word_characters(bool in_class) {
  CharSet set = set_of([](CharProperties p) { return p.word(); });
  CharSet joiners;
  joiners.add_range(0x200C, 0x200D);
  joiners.invert();
  set.intersect(joiners);
  if (!in_class)
    for (char32_t point : {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE}) set.add(point);
  return set;
}

void CharSet::ignore_case() {
  constexpr char32_t kCased = 0x1EA00;  // no letter above has cases
  std::unordered_set<char32_t> folded;
  for (char32_t point = 0; point < kCased; ++point)
    if (contains(point)) folded.insert(fold_case(point));
  for (char32_t point = 0; point < kCased; ++point)
    if (!contains(point) && folded.contains(fold_case(point))) add(point);
}

}  // namespace megatron::tokenizers
