#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

namespace megatron::cuda {

// out[i] = table[ids[i] / divisor − first]; zero where ids[i] is negative or the row is not in the table.
void gather(const KernelContext& ctx, const Tensor& table, const Tensor& ids, const Tensor& out,
            int64_t first, int64_t divisor);

void scatter_add_rows(const KernelContext& ctx, const ScatterAddRowsArgs& args);

// An element of a row that may be its largest.
template <class C>
struct Candidate {
  C value;
  int64_t index;  // −1: none
  // Larger first; among equals the lower index.
  __device__ bool before(const Candidate& other) const {
    if (index < 0 || other.index < 0) return index >= 0;
    return value > other.value || (value == other.value && index < other.index);
  }
};

template <class C>
__device__ Candidate<C> better(const Candidate<C>& a, const Candidate<C>& b) {
  return b.before(a) ? b : a;
}

template <class C>
__device__ Candidate<C> warp_best(Candidate<C> best) {
  for (int offset = 16; offset; offset /= 2)
    best = better(best, Candidate<C>{__shfl_xor_sync(0xffffffffu, best.value, offset),
                                     __shfl_xor_sync(0xffffffffu, best.index, offset)});
  return best;
}

}  // namespace megatron::cuda
