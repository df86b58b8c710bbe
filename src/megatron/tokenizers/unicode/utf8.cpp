#include "megatron/tokenizers/unicode/utf8.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <cstring>

namespace megatron::tokenizers {

void append_utf8(std::string& text, char32_t point) {
  if (point >= 0x110000 || (point >= 0xD800 && point < 0xE000)) point = 0xFFFD;
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else if (point < 0x800) {
    text += static_cast<char>(0xC0 | point >> 6);
    text += static_cast<char>(0x80 | (point & 63));
  } else if (point < 0x10000) {
    text += static_cast<char>(0xE0 | point >> 12);
    text += static_cast<char>(0x80 | (point >> 6 & 63));
    text += static_cast<char>(0x80 | (point & 63));
  } else {
    text += static_cast<char>(0xF0 | point >> 18);
    text += static_cast<char>(0x80 | (point >> 12 & 63));
    text += static_cast<char>(0x80 | (point >> 6 & 63));
    text += static_cast<char>(0x80 | (point & 63));
  }
}

#ifdef __AVX2__
namespace {

// Looks at 32 bytes at a time. What may be wrong with two neighbours follows from three hexadecimal digits,
// as Keiser and Lemire found: a table for each digit has a bit for each fault, and a fault is one that all
// three have. Third and fourth bytes of a character are checked by where they must stand.
class Utf8Check {
 public:
  void add(__m256i bytes) {
    if (_mm256_movemask_epi8(_mm256_or_si256(bytes, last_)) != 0) check(bytes);
    last_ = bytes;
  }
  bool valid() const { return _mm256_testz_si256(faults_, faults_); }

 private:
  enum Fault : uint8_t {
    kShort = 1,        // a first byte, and no trail behind it
    kLong = 2,         // a trail behind ASCII
    kOverlong3 = 4,    // E0 80 to E0 9F
    kLarge = 8,        // F4 90 and above
    kSurrogate = 16,   // ED A0 to ED BF
    kOverlong2 = 32,   // C0, C1
    kOverlong4 = 64,   // F0 80 to F0 8F; F5 80 to FF 8F too
    kTwoTrails = 128,  // right where a third or fourth byte must stand
    kAnyLow = kShort | kLong | kTwoTrails,
  };
  static __m256i table(const uint8_t (&rows)[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows)));
  }
  void check(__m256i bytes) {
    static constexpr uint8_t kFirstHigh[16] = {kLong,
                                               kLong,
                                               kLong,
                                               kLong,
                                               kLong,
                                               kLong,
                                               kLong,
                                               kLong,
                                               kTwoTrails,
                                               kTwoTrails,
                                               kTwoTrails,
                                               kTwoTrails,
                                               kShort | kOverlong2,
                                               kShort,
                                               kShort | kOverlong3 | kSurrogate,
                                               kShort | kLarge | kOverlong4};
    static constexpr uint8_t kHigh = kAnyLow | kLarge | kOverlong4;
    static constexpr uint8_t kFirstLow[16] = {kAnyLow | kOverlong3 | kOverlong2 | kOverlong4,
                                              kAnyLow | kOverlong2,
                                              kAnyLow,
                                              kAnyLow,
                                              kAnyLow | kLarge,
                                              kHigh,
                                              kHigh,
                                              kHigh,
                                              kHigh,
                                              kHigh,
                                              kHigh,
                                              kHigh,
                                              kHigh,
                                              kHigh | kSurrogate,
                                              kHigh,
                                              kHigh};
    static constexpr uint8_t kTrail = kLong | kOverlong2 | kTwoTrails;
    static constexpr uint8_t kSecondHigh[16] = {kShort,
                                                kShort,
                                                kShort,
                                                kShort,
                                                kShort,
                                                kShort,
                                                kShort,
                                                kShort,
                                                kTrail | kOverlong3 | kOverlong4,
                                                kTrail | kOverlong3 | kLarge,
                                                kTrail | kSurrogate | kLarge,
                                                kTrail | kSurrogate | kLarge,
                                                kShort,
                                                kShort,
                                                kShort,
                                                kShort};
    const __m256i joint = _mm256_permute2x128_si256(last_, bytes, 0x21);
    const __m256i one_before = _mm256_alignr_epi8(bytes, joint, 15),
                  two_before = _mm256_alignr_epi8(bytes, joint, 14),
                  three_before = _mm256_alignr_epi8(bytes, joint, 13);
    const __m256i digit = _mm256_set1_epi8(15);
    const auto high = [&](__m256i b) { return _mm256_and_si256(_mm256_srli_epi16(b, 4), digit); };
    const __m256i pairs = _mm256_and_si256(
        _mm256_and_si256(_mm256_shuffle_epi8(table(kFirstHigh), high(one_before)),
                         _mm256_shuffle_epi8(table(kFirstLow), _mm256_and_si256(one_before, digit))),
        _mm256_shuffle_epi8(table(kSecondHigh), high(bytes)));
    // The highest bit where a third or fourth byte must stand.
    const __m256i third = _mm256_subs_epu8(two_before, _mm256_set1_epi8(0xE0 - 0x80)),
                  fourth = _mm256_subs_epu8(three_before, _mm256_set1_epi8(0xF0 - 0x80));
    const __m256i must = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8(-128));
    faults_ = _mm256_or_si256(faults_, _mm256_xor_si256(must, pairs));
  }

  __m256i last_ = _mm256_setzero_si256(), faults_ = _mm256_setzero_si256();
};

}  // namespace

bool is_utf8(std::string_view text) {
  Utf8Check check;
  size_t at = 0;
  for (; at + 32 <= text.size(); at += 32) {
    check.add(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(text.data() + at)));
    if (at % 4096 == 0 && !check.valid()) return false;
  }
  // What is left, with zeros behind it: a character that is cut is one that ASCII follows.
  alignas(32) char rest[64] = {};
  text.substr(at).copy(rest, 32);
  check.add(_mm256_load_si256(reinterpret_cast<const __m256i*>(rest)));
  check.add(_mm256_load_si256(reinterpret_cast<const __m256i*>(rest + 32)));
  return check.valid();
}
#else
bool is_utf8(std::string_view text) {
  const auto* s = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  const auto trail = [&](size_t i) { return (s[i] & 0xC0) == 0x80; };
  for (size_t i = 0; i < size;) {
    if (i + 8 <= size) {
      uint64_t word;
      std::memcpy(&word, s + i, 8);
      if ((word & 0x8080808080808080u) == 0) {
        i += 8;
        continue;
      }
    }
    const unsigned char lead = s[i];
    if (lead < 0x80) {
      ++i;
    } else if (lead >= 0xE1 && lead <= 0xEC && i + 3 <= size && trail(i + 1) && trail(i + 2)) {
      i += 3;
    } else if (lead >= 0xC2 && lead < 0xE0 && i + 2 <= size && trail(i + 1)) {
      i += 2;
    } else {
      const Utf8Char c = decode_utf8(text.substr(i));
      if (!c.valid) return false;
      i += c.length;
    }
  }
  return true;
}
#endif

std::string to_utf8_lossy(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes.substr(i));
    if (c.valid)
      text.append(bytes, i, c.length);
    else
      text += "\xEF\xBF\xBD";
    i += c.length;
  }
  return text;
}

}  // namespace megatron::tokenizers
