#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/core/named_barrier.cuh"

namespace megatron::cuda {

// How a row lies in registers: `Items` vectors of W elements in each of its threads. These are `Lanes` of a
// warp, which the row fills, or else blockDim.x, whole warps. threadIdx.y counts the rows that a block treats
// side by side.
template <int W, int Items, int Lanes = 0>
struct RowShape {
  static constexpr int kMaxRows = kMaxRowGroups;  // of several warps each
  static constexpr int64_t columns(int threads) { return int64_t{threads} * Items * W; }

  __device__ static int threads() { return Lanes ? Lanes : static_cast<int>(blockDim.x); }
  __device__ static int column(int item) { return (item * threads() + static_cast<int>(threadIdx.x)) * W; }
};

// A row's sum, for all of its threads. Where a row has several warps they meet once: `partial` must be
// another one of two from call to call, so that a slow warp may still read the last one's.
template <class C, int Lanes = 0>
struct RowSums {
  C (*partial)[RowShape<1, 1>::kMaxRows][32];

  __device__ C sum(C value, int turn) const {
    if constexpr (Lanes) {
#pragma unroll
      for (int offset = Lanes / 2; offset; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
      return value;
    }
    value = warp_sum(value);
    const unsigned warps = blockDim.x / 32;
    if (warps == 1) return value;
    C* mine = partial[turn][threadIdx.y];
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = value;
    row_group_sync(threadIdx.y, blockDim.x);
    value = 0;
    for (unsigned w = 0; w < warps; ++w) value += mine[w];
    return value;
  }
};

}  // namespace megatron::cuda
