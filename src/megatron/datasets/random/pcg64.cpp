#include "megatron/datasets/random/pcg64.h"

#include <array>
#include <bit>
#include <cstddef>

namespace megatron {
namespace {

using Word = unsigned __int128;

Word word(uint64_t high, uint64_t low) { return (Word{high} << 64) | low; }
const Word kMultiplier = word(0x2360ed051fc65da4u, 0x4385df649fccf645u);

// SeedSequence(seed).generate_state(4, uint64).
std::array<uint64_t, 4> seed_words(uint32_t seed) {
  uint32_t hash = 0x43b0d7e5u;
  auto mix_in = [&](uint32_t value) {
    value ^= hash;
    hash *= 0x931e8875u;
    value *= hash;
    return value ^ (value >> 16);
  };
  auto mix = [](uint32_t x, uint32_t y) {
    const uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ (result >> 16);
  };
  std::array<uint32_t, 4> pool;
  for (size_t i = 0; i < 4; ++i) pool[i] = mix_in(i == 0 ? seed : 0);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j)
      if (i != j) pool[j] = mix(pool[j], mix_in(pool[i]));
  }
  std::array<uint32_t, 8> words;
  uint32_t state = 0x8b51f9ddu;
  for (size_t i = 0; i < 8; ++i) {
    uint32_t value = pool[i % 4] ^ state;
    state *= 0x58f38dedu;
    value *= state;
    words[i] = value ^ (value >> 16);
  }
  std::array<uint64_t, 4> result;
  for (size_t i = 0; i < 4; ++i) result[i] = words[2 * i] | (uint64_t{words[2 * i + 1]} << 32);
  return result;
}

}  // namespace

Pcg64::Pcg64(uint32_t seed) {
  const std::array<uint64_t, 4> words = seed_words(seed);
  increment_ = (word(words[2], words[3]) << 1) | 1;
  state_ = (increment_ + word(words[0], words[1])) * kMultiplier + increment_;
}

uint64_t Pcg64::next64() {
  state_ = state_ * kMultiplier + increment_;
  const auto high = static_cast<uint64_t>(state_ >> 64), low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

uint32_t Pcg64::next32() {
  if (has_buffered_) {
    has_buffered_ = false;
    return buffered_;
  }
  const uint64_t value = next64();
  buffered_ = static_cast<uint32_t>(value >> 32);
  has_buffered_ = true;
  return static_cast<uint32_t>(value);
}

uint32_t Pcg64::bounded(uint32_t max) {
  if (max == 0xffffffffu) return next32();
  const uint32_t count = max + 1, threshold = (0xffffffffu - max) % count;
  uint64_t product;
  do {
    product = uint64_t{next32()} * count;
  } while (static_cast<uint32_t>(product) < threshold);
  return static_cast<uint32_t>(product >> 32);
}

}  // namespace megatron
