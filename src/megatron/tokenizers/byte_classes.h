#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <cstdint>

#include "megatron/tokenizers/word_scanner_inl.h"

namespace megatron::tokenizers {

// Which of 64 bytes belong to a character of some class, the first byte lowest. All bytes of a character have
// its class.
struct ByteClasses {
  uint64_t letter = 0, number = 0, space = 0, line_end = 0, blank = 0;  // blank: U+0020 alone
  uint64_t apostrophe = 0;
  uint64_t trail = 0;      // bytes behind the first of a character
  uint64_t not_ascii = 0;  // all bytes of such characters
};

// The classes of ASCII bytes among 64; others are marked alone.
inline ByteClasses ascii_classes(const char* bytes) {
  ByteClasses c;
#ifdef __AVX2__
  // A byte's class is what the rows of both its hexadecimal digits have in common: 1 numbers, 2 and 4
  // letters, 8 the blank, 16 other spaces, 32 ends of lines.
  const __m256i of_low =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(13, 7, 7, 7, 7, 7, 7, 7, 7, 23, 38, 18, 18, 34, 2, 2));
  const __m256i of_high =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(48, 0, 8, 1, 2, 4, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0));
  for (int half = 0; half < 2; ++half) {
    const __m256i text = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32 * half));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(text, 4), _mm256_set1_epi8(15));
    const __m256i classes =
        _mm256_and_si256(_mm256_shuffle_epi8(of_low, text), _mm256_shuffle_epi8(of_high, high));
    const auto any_of = [&](int bits) {
      const __m256i hit = _mm256_and_si256(classes, _mm256_set1_epi8(static_cast<char>(bits)));
      return uint64_t{
                 ~static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(hit, _mm256_setzero_si256())))}
             << 32 * half;
    };
    const auto mask = [&](__m256i hit) {
      return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(hit))} << 32 * half;
    };
    c.letter |= any_of(6);
    c.number |= mask(_mm256_slli_epi16(classes, 7));
    c.space |= any_of(56);
    c.line_end |= mask(_mm256_slli_epi16(classes, 2));
    c.blank |= mask(_mm256_slli_epi16(classes, 4));
    c.apostrophe |= mask(_mm256_cmpeq_epi8(text, _mm256_set1_epi8('\'')));
    c.not_ascii |= mask(text);
    c.trail |= mask(_mm256_cmpgt_epi8(_mm256_set1_epi8(-64), text));
  }
#else
  for (int i = 0; i < 64; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const uint64_t bit = uint64_t{1} << i;
    if (byte >= 0x80) {
      c.not_ascii |= bit;
      if (byte < 0xC0) c.trail |= bit;
      continue;
    }
    const uint8_t classes = kAsciiClasses[byte];
    if (classes & kLetter) c.letter |= bit;
    if (classes & kNumber) c.number |= bit;
    if (classes & kSpace) c.space |= bit;
    if (classes & kLineEnd) c.line_end |= bit;
    if (byte == ' ') c.blank |= bit;
    if (byte == '\'') c.apostrophe |= bit;
  }
#endif
  return c;
}

// The classes of the whole characters among the 64 bytes at `at`, and how many bytes these are. The text
// begins a character there and goes on behind them.
inline ByteClasses byte_classes(const ScannedText& text, size_t at, unsigned& count) {
  ByteClasses c = ascii_classes(text.data + at);
  count = 64;
  if (c.not_ascii == 0) return c;
  uint64_t leads = c.not_ascii & ~c.trail;
  if ((static_cast<unsigned char>(text.data[at + 64]) & 0xC0) == 0x80) {  // the last character is cut
    count = 63 - static_cast<unsigned>(__builtin_clzll(leads));
    const uint64_t whole = (uint64_t{1} << count) - 1;
    leads &= whole;
    for (uint64_t* mask :
         {&c.letter, &c.number, &c.space, &c.line_end, &c.blank, &c.apostrophe, &c.trail, &c.not_ascii})
      *mask &= whole;
  }
  // Letters are the rule: only others are looked at again.
  c.letter |= c.not_ascii;
  for (; leads != 0; leads &= leads - 1) {
    const auto place = static_cast<unsigned>(__builtin_ctzll(leads));
    const ClassedChar character = classed_char(text, at + place);
    if (character.classes & kLetter) continue;
    const uint64_t bytes = ((uint64_t{1} << character.length) - 1) << place;
    c.letter &= ~bytes;
    if (character.classes & kNumber) c.number |= bytes;
    if (character.classes & kSpace) c.space |= bytes;
  }
  return c;
}

}  // namespace megatron::tokenizers
