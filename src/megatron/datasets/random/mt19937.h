#pragma once

#include <array>
#include <cstdint>

namespace megatron {

// MT19937 seeded by one word, the generator under NumPy's RandomState and torch's CPU generator.
class Mt19937 {
 public:
  explicit Mt19937(uint32_t seed);

  uint32_t next32() {
    if (next_ == kWords) refill();
    uint32_t y = state_[next_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
  }
  // Two words, the high one first, as NumPy and torch join them.
  uint64_t next64() {
    const uint64_t high = next32();
    return (high << 32) | next32();
  }

 private:
  static constexpr int kWords = 624;
  void refill();

  std::array<uint32_t, kWords> state_;
  int next_ = kWords;
};

}  // namespace megatron
