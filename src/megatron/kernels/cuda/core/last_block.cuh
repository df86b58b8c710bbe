#pragma once

#include "megatron/kernels/cuda/core/kernel_state.h"
#include "megatron/kernels/cuda/core/launch.cuh"

// The last of some blocks of a kernel joins what all of them have left in device memory, which saves a kernel
// that does nothing else.
namespace megatron::cuda {

// Counters for as many groups of blocks, zero between kernels; null where there are too few. They are the
// rank's, whose kernels run one after the other.
inline uint32_t* arrival_counters(const KernelContext& ctx, int64_t groups) {
  return groups <= kArrivalCounters ? kernel_state(ctx).arrivals.get() : nullptr;
}

// True in all threads of the last of `count` blocks that call it with this counter. What the others wrote
// before is visible to it, past the L1 cache.
__device__ __forceinline__ bool last_to_arrive(uint32_t* counter, int count) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == static_cast<uint32_t>(count - 1);
    if (last) *counter = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace megatron::cuda
