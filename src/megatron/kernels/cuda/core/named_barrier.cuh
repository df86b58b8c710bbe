#pragma once

namespace megatron::cuda {

inline constexpr int kMaxRowGroups = 4;

// A barrier for `threads` threads of one of a block's lines, since the lines' loops may end apart. Its number
// is written out: one that is known at run time only would reserve all sixteen of a block, and a Hopper
// multiprocessor, which has 64, would hold no more than four blocks. A jump and not a `switch`, of which the
// compiler makes barriers with predicates, and racecheck takes those for barriers that all threads came to.
__device__ __forceinline__ void row_group_sync(unsigned group, unsigned threads) {
  static_assert(kMaxRowGroups == 4);
  asm volatile(
      "{\n"
      "groups: .branchtargets group0, group1, group2, group3;\n"
      "brx.idx %0, groups;\n"
      "group0: bar.sync 1, %1; bra done;\n"
      "group1: bar.sync 2, %1; bra done;\n"
      "group2: bar.sync 3, %1; bra done;\n"
      "group3: bar.sync 4, %1;\n"
      "done:\n"
      "}" ::"r"(group),
      "r"(threads)
      : "memory");
}

}  // namespace megatron::cuda
