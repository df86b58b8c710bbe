#include "megatron/datasets/random/mt19937.h"

namespace megatron {

Mt19937::Mt19937(uint32_t seed) {
  state_[0] = seed;
  for (uint32_t i = 1; i < kWords; ++i) {
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
}

void Mt19937::refill() {
  constexpr int kShift = 397;
  auto twist = [](uint32_t high, uint32_t low) {
    const uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (y >> 1) ^ ((low & 1u) ? 0x9908b0dfu : 0u);
  };
  for (int i = 0; i < kWords - kShift; ++i) state_[i] = state_[i + kShift] ^ twist(state_[i], state_[i + 1]);
  for (int i = kWords - kShift; i < kWords - 1; ++i)
    state_[i] = state_[i + kShift - kWords] ^ twist(state_[i], state_[i + 1]);
  state_[kWords - 1] = state_[kShift - 1] ^ twist(state_[kWords - 1], state_[0]);
  next_ = 0;
}

}  // namespace megatron
