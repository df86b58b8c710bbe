#pragma once

#include "megatron/kernels/cuda/launch.cuh"

// Shared memory that is filled while threads do other things.
namespace megatron::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

// 16 bytes from device to shared memory, or zeros.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

template <class Kernel>
void allow_shared_memory(Kernel kernel, size_t bytes) {
  if (bytes > 32 * 1024)  // beyond 48 KiB, a kernel's own static part included, it must be asked for
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "reserving shared memory");
}

}  // namespace megatron::cuda
