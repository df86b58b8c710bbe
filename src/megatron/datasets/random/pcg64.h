#pragma once

#include <cstdint>

namespace megatron {

// NumPy's default_rng(seed): PCG64 seeded through SeedSequence.
class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed);

  uint64_t next64();
  uint32_t next32();  // the low half of a 64-bit draw, then its high half
  // A uniform 32-bit integer of [0, max], by Lemire's multiplication.
  uint32_t bounded(uint32_t max);

 private:
  using Word = unsigned __int128;

  Word state_, increment_;
  uint32_t buffered_ = 0;
  bool has_buffered_ = false;
};

}  // namespace megatron
