#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define MEGATRON_HOST_DEVICE __host__ __device__
#else
#define MEGATRON_HOST_DEVICE
#endif

namespace megatron {

// What a stream of random numbers belongs to: the run's seed and one parameter, or one dropout site of one
// layer and micro-batch. Element i of the global tensor always gets the numbers of counter i, on whatever
// rank it lives.
struct RngKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
  // Added to the stream when numbers are drawn, from memory of the device that draws: so a recording draws
  // others each time it runs. Null: nothing.
  const int64_t* offset = nullptr;

  MEGATRON_HOST_DEVICE RngKey resolved() const {
    return offset ? RngKey{seed, stream + static_cast<uint64_t>(*offset)} : RngKey{seed, stream};
  }
};

// Philox 4x32 with ten rounds: four random words for each (key, counter).
struct Philox {
  uint32_t word[4];

  MEGATRON_HOST_DEVICE static Philox at(RngKey key, uint64_t counter) {
    uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
    uint32_t c2 = static_cast<uint32_t>(key.stream), c3 = static_cast<uint32_t>(key.stream >> 32);
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
      uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(p1);
      c3 = static_cast<uint32_t>(p0);
      c0 = n0;
      c2 = n2;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
  }

  // In [0, 1), from the upper 24 bits, so that every value is exact in fp32.
  MEGATRON_HOST_DEVICE float uniform(int i) const { return static_cast<float>(word[i] >> 8) * 0x1p-24f; }

  // A standard normal value from words 0 and 1 (Box–Muller, in double so that all dtypes start from the same
  // value).
  MEGATRON_HOST_DEVICE double normal() const {
    double u = (static_cast<double>(word[0]) + 1.0) * 0x1p-32, v = static_cast<double>(word[1]) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586477 * v);
  }
};

}  // namespace megatron
