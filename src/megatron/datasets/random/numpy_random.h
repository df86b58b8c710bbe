#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "megatron/datasets/random/mt19937.h"

namespace megatron {

// NumPy's legacy RandomState(seed), draw for draw: the order of samples is defined by it.
class RandomState {
 public:
  explicit RandomState(uint32_t seed) : bits_(seed) {}

  uint32_t next32() { return bits_.next32(); }

  // A uniform double of [0, 1) with 53 bits: random_sample().
  double uniform() {
    const uint32_t a = bits_.next32() >> 5, b = bits_.next32() >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
  }

  // A uniform integer of [0, max], by masking and rejection.
  uint64_t interval(uint64_t max) {
    if (max == 0) return 0;
    const uint64_t mask = ~uint64_t{0} >> std::countl_zero(max);
    uint64_t value;
    if (max <= 0xffffffffu) {
      while ((value = bits_.next32() & mask) > max) {
      }
    } else {
      while ((value = bits_.next64() & mask) > max) {
      }
    }
    return value;
  }

  // A uniform integer of [low, high): randint(low, high).
  int64_t randint(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(interval(static_cast<uint64_t>(high - low - 1)));
  }

  // binomial(1, p): one draw, also where p is 0 or 1.
  bool bernoulli(double p) {
    const double u = uniform();
    return p <= 0.5 ? u > 1.0 - p : !(u > p);
  }

  // Shuffles in place: shuffle(). Draws do not depend on the values, so that a few are made ahead and their
  // elements fetched meanwhile.
  template <class T>
  void shuffle(std::span<T> values) {
    constexpr size_t kAhead = 32;
    std::array<size_t, kAhead> others;
    for (size_t i = values.size(); i > 1;) {
      const size_t count = std::min(kAhead, i - 1);
      for (size_t k = 0; k < count; ++k) {
        others[k] = interval(i - 1 - k);
        __builtin_prefetch(&values[others[k]], 1);
      }
      for (size_t k = 0; k < count; ++k) std::swap(values[--i], values[others[k]]);
    }
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    shuffle(std::span<T>(values));
  }

 private:
  Mt19937 bits_;
};

}  // namespace megatron
