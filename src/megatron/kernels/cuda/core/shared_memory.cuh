#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

// Shared memory that is filled while threads do other things.
namespace megatron::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

// 16 bytes from device to shared memory, or zeros.
__device__ __forceinline__ void cp_async(void* to, const void* from, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
// Four bytes from device to shared memory, or zero.
__device__ __forceinline__ void cp_async_word(void* to, const void* from, bool valid) {
  int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Asks for 128 bytes of device memory that a later read will find nearer.
__device__ __forceinline__ void prefetch(const void* data) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(data));
}

template <class Kernel>
void allow_shared_memory(Kernel kernel, size_t bytes) {
  if (bytes > 32 * 1024)  // beyond 48 KiB, a kernel's own static part included, it must be asked for
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "reserving shared memory");
}

// How many blocks the GPU holds at once, and no more than there are groups of rows.
template <class Kernel>
int64_t resident_blocks(const KernelContext& ctx, Kernel kernel, dim3 block, size_t bytes, int64_t groups) {
  runtime_of(ctx).bind();
  allow_shared_memory(kernel, bytes);
  int blocks_per_sm = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel,
                                                           static_cast<int>(block.x * block.y), bytes),
             "planning a kernel");
  return std::clamp<int64_t>(groups, 1, int64_t{blocks_per_sm} * runtime_of(ctx).properties().sm_count);
}

}  // namespace megatron::cuda
