#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

// The class of every code point, a byte each.
const uint8_t* character_classes();

// A text as the scanner sees it. It is valid UTF-8.
struct ScannedText {
  const char* data;
  size_t size;
  const uint8_t* classes = character_classes();

  char operator[](size_t at) const { return data[at]; }
};

struct ClassedChar {
  uint8_t classes;
  uint32_t length;
};

inline ClassedChar classed_char(const ScannedText& text, size_t at) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data + at);
  const unsigned char lead = bytes[0];
  if (lead < 0x80) return {kAsciiClasses[lead], 1};
  if (lead < 0xE0) return {text.classes[(lead & 31u) << 6 | (bytes[1] & 63u)], 2};
  if (lead >= 0xE5 && lead <= 0xE9) return {kOtherLetter, 3};  // U+5000 to U+9FFF are Lo
  if (lead < 0xF0) return {text.classes[(lead & 15u) << 12 | (bytes[1] & 63u) << 6 | (bytes[2] & 63u)], 3};
  return {text.classes[(lead & 7u) << 18 | (bytes[1] & 63u) << 12 | (bytes[2] & 63u) << 6 | (bytes[3] & 63u)],
          4};
}

// The end of a run of ASCII letters.
inline size_t ascii_letters_end(const ScannedText& text, size_t at) {
#ifdef __SSE2__
  while (at + 16 <= text.size) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data + at));
    const __m128i lower = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
    const __m128i letters = _mm_and_si128(_mm_cmpgt_epi8(lower, _mm_set1_epi8('a' - 1)),
                                          _mm_cmplt_epi8(lower, _mm_set1_epi8('z' + 1)));
    const auto others = static_cast<uint32_t>(_mm_movemask_epi8(letters)) ^ 0xFFFFu;
    if (others != 0) return at + static_cast<size_t>(__builtin_ctz(others));
    at += 16;
  }
#endif
  while (at < text.size && ((static_cast<unsigned char>(text[at]) | 0x20u) - 'a') < 26u) ++at;
  return at;
}

// The end of the run of characters of some classes.
inline size_t run_end(uint8_t classes, const ScannedText& text, size_t at) {
  if ((classes & kLetter) == kLetter) at = ascii_letters_end(text, at);
  while (at < text.size) {
    const ClassedChar c = classed_char(text, at);
    if (!(c.classes & classes)) break;
    at += c.length;
  }
  return at;
}

// Bytes of the contraction at an apostrophe; 0 where there is none. In any case the long s counts as s.
inline size_t contraction_length(bool any_case, const ScannedText& text, size_t at) {
  if (at + 1 >= text.size || text[at] != '\'') return 0;
  const auto letter = [&](size_t i) {
    const char c = i < text.size ? text[i] : '\0';
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
  return any_case && at + 2 < text.size && text[at + 1] == '\xC5' && text[at + 2] == '\xBF' ? 3 : 0;
}

// `[Lu Lt Lm Lo M]*[Ll Lm Lo M]+` at `at`; 0 where it does not match.
inline size_t lower_word_end(const ScannedText& text, size_t at) {
  size_t i = at, last_both = 0;
  while (i < text.size) {
    const ClassedChar c = classed_char(text, i);
    if (!(c.classes & (kUpper | kOtherLetter | kMark))) break;
    i += c.length;
    if (c.classes & (kOtherLetter | kMark)) last_both = i;
  }
  const size_t end = run_end(kLower | kOtherLetter | kMark, text, i);
  return end > i ? end : last_both;
}

// The alternatives of o200k for words of letters; 0 where none matches.
inline size_t cased_word_end(const ScannedText& text, size_t at, ClassedChar first) {
  const bool prefix = !(first.classes & (kLineEnd | kLetter | kNumber));
  const size_t behind = at + first.length;
  if (prefix && behind < text.size)
    if (const size_t end = lower_word_end(text, behind)) return end;
  if (first.classes & (kLetter | kMark))
    if (const size_t end = lower_word_end(text, at)) return end;
  if (prefix) {
    const size_t end = run_end(kUpper | kOtherLetter | kMark, text, behind);
    if (end > behind) return end;
  }
  return first.classes & kUpper ? run_end(kUpper | kOtherLetter | kMark, text, at) : 0;
}

// The end of a word of white space that begins at `at`.
inline size_t space_end(const WordRules& rules, const ScannedText& text, size_t at) {
  size_t end = at, last = at, line_end = 0;
  while (end < text.size) {
    const ClassedChar c = classed_char(text, end);
    if (!(c.classes & kSpace)) break;
    last = end;
    end += c.length;
    if (c.classes & kLineEnd) line_end = end;
  }
  if (end == text.size && rules.whole_end) return end;
  if (rules.line_ends && line_end != 0) return line_end;
  return end == text.size || last == at ? end : last;
}

[[gnu::always_inline]] inline size_t scan_word(const WordRules& rules, const ScannedText& text, size_t at) {
  const ClassedChar first = classed_char(text, at);
  const size_t behind = at + first.length;
  using Contractions = WordRules::Contractions;
  using Letters = WordRules::Letters;
  if (text[at] == '\'' &&
      (rules.contractions == Contractions::lower || rules.contractions == Contractions::before))
    if (const size_t length = contraction_length(rules.contractions == Contractions::before, text, at))
      return at + length;

  if (rules.letters == Letters::cased) {
    if (const size_t end = cased_word_end(text, at, first))
      return rules.contractions == Contractions::behind ? end + contraction_length(true, text, end) : end;
  } else {
    if (first.classes & kLetter) return run_end(kLetter, text, behind);
    const bool prefix =
        rules.letters == Letters::spaced ? text[at] == ' ' : !(first.classes & (kLineEnd | kNumber));
    if (prefix && behind < text.size) {
      const ClassedChar next = classed_char(text, behind);
      if (next.classes & kLetter) return run_end(kLetter, text, behind + next.length);
    }
  }

  if (first.classes & kNumber) {
    if (rules.digits == 0) return run_end(kNumber, text, behind);
    size_t end = behind;
    for (int count = 1; count < rules.digits && end < text.size; ++count) {
      const ClassedChar c = classed_char(text, end);
      if (!(c.classes & kNumber)) break;
      end += c.length;
    }
    return end;
  }
  if (text[at] == ' ' && behind < text.size) {
    const ClassedChar next = classed_char(text, behind);
    if (rules.digits == 0 && (next.classes & kNumber)) return run_end(kNumber, text, behind);
    if (!(next.classes & kSymbols)) return space_end(rules, text, at);
  } else if (first.classes & kSpace) {
    return space_end(rules, text, at);
  }
  size_t end = run_end(kSymbols, text, behind);
  if (rules.line_ends)
    while (end < text.size && (text[end] == '\r' || text[end] == '\n' || (rules.slashes && text[end] == '/')))
      ++end;
  return end;
}

}  // namespace megatron::tokenizers
