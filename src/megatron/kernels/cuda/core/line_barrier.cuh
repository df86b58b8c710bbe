#pragma once

namespace megatron::cuda {

inline constexpr int kMostLines = 4;

// A barrier for `threads` threads of one of a block's lines, since the lines' loops may end apart. Its number
// is written out: one that is known at run time only would reserve all sixteen of a block, and a Hopper
// multiprocessor, which has 64, would hold no more than four blocks. A jump and not a `switch`, of which the
// compiler makes barriers with predicates, and racecheck takes those for barriers that all threads came to.
__device__ __forceinline__ void line_barrier(unsigned line, unsigned threads) {
  static_assert(kMostLines == 4);
  asm volatile(
      "{\n"
      "lines: .branchtargets line0, line1, line2, line3;\n"
      "brx.idx %0, lines;\n"
      "line0: bar.sync 1, %1; bra done;\n"
      "line1: bar.sync 2, %1; bra done;\n"
      "line2: bar.sync 3, %1; bra done;\n"
      "line3: bar.sync 4, %1;\n"
      "done:\n"
      "}" ::"r"(line),
      "r"(threads)
      : "memory");
}

}  // namespace megatron::cuda
