#pragma once

namespace megatron::cuda {

inline constexpr int kMaxRowGroups = 4;

// Syncs the `threads` threads of one row group of a block, since the groups' loops may end at different
// times. Barrier ids are constants: with an id known at run time the compiler reserves all sixteen of a
// block, and an SM, which has 64, holds at most four blocks. The branch is brx.idx, since the compiler turns
// a `switch` into predicated barriers, which racecheck misreads.
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
