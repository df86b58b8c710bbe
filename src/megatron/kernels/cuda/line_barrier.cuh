#pragma once

#include <cstdint>

namespace megatron::cuda {

inline constexpr int kMostLines = 4;

// A barrier for `threads` threads of one of a block's lines, since the lines' loops may end apart. Its number
// is written out: one that is known at run time only would reserve all sixteen of a block, and a Hopper
// multiprocessor, which has 64, would hold no more than four blocks.
__device__ __forceinline__ void line_barrier(unsigned line, unsigned threads) {
  switch (line) {
    case 0:
      asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
      break;
    case 1:
      asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
      break;
    case 2:
      asm volatile("bar.sync 3, %0;" ::"r"(threads) : "memory");
      break;
    default:
      static_assert(kMostLines == 4);
      asm volatile("bar.sync 4, %0;" ::"r"(threads) : "memory");
  }
}

}  // namespace megatron::cuda
