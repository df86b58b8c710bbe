#pragma once

#include <array>

#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"
#include "megatron/tokenizers/word_scanner.h"

// word_end() for inlining where every word counts; rules that are constants fold away.
namespace megatron::tokenizers {

// What the patterns tell apart, as bits.
enum CharClass : uint8_t {
  kUpper = 1,        // Lu, Lt
  kLower = 2,        // Ll
  kOtherLetter = 4,  // Lm, Lo
  kMark = 8,
  kNumber = 16,
  kSpace = 32,  // with kLineEnd for \r and \n
  kLineEnd = 64,
  kSymbol = 128,  // all others
  kLetter = kUpper | kLower | kOtherLetter,
  kSymbols = kSymbol | kMark,  // [^\s\p{L}\p{N}]
};

constexpr std::array<uint8_t, 128> kAsciiClasses = [] {
  std::array<uint8_t, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    if (c >= 'A' && c <= 'Z')
      classes[c] = kUpper;
    else if (c >= 'a' && c <= 'z')
      classes[c] = kLower;
    else if (c >= '0' && c <= '9')
      classes[c] = kNumber;
    else if (c == '\r' || c == '\n')
      classes[c] = kSpace | kLineEnd;
    else if (c == ' ' || (c >= 9 && c <= 12))
      classes[c] = kSpace;
    else
      classes[c] = kSymbol;
  }
  return classes;
}();

// The class of any code point.
uint8_t class_of_point(char32_t point);

struct ClassedChar {
  uint8_t classes;
  uint32_t length;
};

inline ClassedChar classed_char(const char* text, size_t at, size_t size) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {kAsciiClasses[byte], 1};
  const Utf8Char c = decode_utf8(text + at, size - at);
  return {class_of_point(c.point), c.length};
}

// The end of the run of characters of some classes.
inline size_t run_end(uint8_t classes, const char* text, size_t at, size_t size) {
  while (at < size) {
    const ClassedChar c = classed_char(text, at, size);
    if (!(c.classes & classes)) break;
    at += c.length;
  }
  return at;
}

// Bytes of the contraction at an apostrophe; 0 where there is none. In any case the long s counts as s.
inline size_t contraction_length(bool any_case, const char* text, size_t at, size_t size) {
  if (at + 1 >= size || text[at] != '\'') return 0;
  const auto letter = [&](size_t i) {
    const char c = i < size ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (letter(at + 1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
      return letter(at + 2) == 'e' ? 3 : 0;
    case 'v':
      return letter(at + 2) == 'e' ? 3 : 0;
    case 'l':
      return letter(at + 2) == 'l' ? 3 : 0;
    default:
      break;
  }
  return any_case && at + 2 < size && text[at + 1] == '\xC5' && text[at + 2] == '\xBF' ? 3 : 0;
}

// `[Lu Lt Lm Lo M]*[Ll Lm Lo M]+` at `at`; 0 where it does not match.
inline size_t lower_word_end(const char* text, size_t at, size_t size) {
  size_t i = at, last_both = 0;
  while (i < size) {
    const ClassedChar c = classed_char(text, i, size);
    if (!(c.classes & (kUpper | kOtherLetter | kMark))) break;
    i += c.length;
    if (c.classes & (kOtherLetter | kMark)) last_both = i;
  }
  const size_t end = run_end(kLower | kOtherLetter | kMark, text, i, size);
  return end > i ? end : last_both;
}

// The alternatives of o200k for words of letters; 0 where none matches.
inline size_t cased_word_end(const char* text, size_t at, size_t size, ClassedChar first) {
  const bool prefix = !(first.classes & (kLineEnd | kLetter | kNumber));
  const size_t behind = at + first.length;
  if (prefix && behind < size)
    if (const size_t end = lower_word_end(text, behind, size)) return end;
  if (first.classes & (kLetter | kMark))
    if (const size_t end = lower_word_end(text, at, size)) return end;
  if (prefix) {
    const size_t end = run_end(kUpper | kOtherLetter | kMark, text, behind, size);
    if (end > behind) return end;
  }
  return first.classes & kUpper ? run_end(kUpper | kOtherLetter | kMark, text, at, size) : 0;
}

// The end of a word of white space that begins at `at`.
inline size_t space_end(const WordRules& rules, const char* text, size_t at, size_t size) {
  size_t end = at, last = at, line_end = 0;
  while (end < size) {
    const ClassedChar c = classed_char(text, end, size);
    if (!(c.classes & kSpace)) break;
    last = end;
    end += c.length;
    if (c.classes & kLineEnd) line_end = end;
  }
  if (end == size && rules.whole_end) return end;
  if (rules.line_ends && line_end != 0) return line_end;
  return end == size || last == at ? end : last;
}

inline size_t scan_word(const WordRules& rules, const char* text, size_t at, size_t size) {
  const ClassedChar first = classed_char(text, at, size);
  const size_t behind = at + first.length;
  using Contractions = WordRules::Contractions;
  using Letters = WordRules::Letters;
  if (text[at] == '\'' &&
      (rules.contractions == Contractions::lower || rules.contractions == Contractions::before))
    if (const size_t length = contraction_length(rules.contractions == Contractions::before, text, at, size))
      return at + length;

  if (rules.letters == Letters::cased) {
    if (const size_t end = cased_word_end(text, at, size, first))
      return rules.contractions == Contractions::behind ? end + contraction_length(true, text, end, size)
                                                        : end;
  } else {
    if (first.classes & kLetter) return run_end(kLetter, text, behind, size);
    const bool prefix =
        rules.letters == Letters::spaced ? text[at] == ' ' : !(first.classes & (kLineEnd | kNumber));
    if (prefix && behind < size) {
      const ClassedChar next = classed_char(text, behind, size);
      if (next.classes & kLetter) return run_end(kLetter, text, behind + next.length, size);
    }
  }

  if (first.classes & kNumber) {
    if (rules.digits == 0) return run_end(kNumber, text, behind, size);
    size_t end = behind;
    for (int count = 1; count < rules.digits && end < size; ++count) {
      const ClassedChar c = classed_char(text, end, size);
      if (!(c.classes & kNumber)) break;
      end += c.length;
    }
    return end;
  }
  if (text[at] == ' ' && behind < size) {
    const ClassedChar next = classed_char(text, behind, size);
    if (rules.digits == 0 && (next.classes & kNumber)) return run_end(kNumber, text, behind, size);
    if (!(next.classes & kSymbols)) return space_end(rules, text, at, size);
  } else if (first.classes & kSpace) {
    return space_end(rules, text, at, size);
  }
  size_t end = run_end(kSymbols, text, behind, size);
  if (rules.line_ends)
    while (end < size && (text[end] == '\r' || text[end] == '\n' || (rules.slashes && text[end] == '/')))
      ++end;
  return end;
}

}  // namespace megatron::tokenizers
