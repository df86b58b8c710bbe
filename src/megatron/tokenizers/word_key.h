#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace megatron::tokenizers {

// The bytes of a short word in registers, so that it is compared and hashed without a loop. The highest byte
// is the length, with a bit for parts of words; words have at least one byte, so that no key is zero.
template <int kWords>
struct BytesKey {
  static constexpr size_t kMost = 8 * kWords - 1;
  uint64_t words[kWords];

  // `readable` bytes may be read from `text` on.
  static BytesKey of(const char* text, size_t length, size_t readable, bool part) {
    BytesKey key;
    if (readable >= sizeof(key.words)) {
      std::memcpy(key.words, text, sizeof(key.words));
      for (int i = 0; i < kWords; ++i) {
        const auto rest = static_cast<ptrdiff_t>(length) - 8 * i;  // bytes of this word and behind it
        const uint64_t keep = rest >= 8 ? ~uint64_t{0} : rest <= 0 ? 0 : ~(~uint64_t{0} << 8 * rest);
        key.words[i] &= keep;
      }
    } else {
      std::memset(key.words, 0, sizeof(key.words));
      std::memcpy(key.words, text, length);
    }
    key.words[kWords - 1] |= uint64_t(length | (part ? kPart : 0)) << 56;
    return key;
  }
  bool empty() const { return words[kWords - 1] == 0; }
  uint64_t hash() const {
    uint64_t hash = 0;
    for (int i = 0; i < kWords; i += 2) {
      const auto product = static_cast<unsigned __int128>(words[i] ^ hash ^ 0x9E3779B97F4A7C15u) *
                           (words[i + 1] ^ 0xD6E8FEB86659FD93u);
      hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    return hash;
  }
  friend bool operator==(const BytesKey& a, const BytesKey& b) {
    uint64_t difference = 0;
    for (int i = 0; i < kWords; ++i) difference |= a.words[i] ^ b.words[i];
    return difference == 0;
  }

 private:
  static constexpr size_t kPart = 128;
};

using WordKey = BytesKey<2>;
using LongWordKey = BytesKey<4>;

}  // namespace megatron::tokenizers
