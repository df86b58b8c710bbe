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
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Long runs of bytes come by themselves, asked for by one thread; a barrier in shared memory says when all
// have arrived. It is used in phases, 0 and 1 in turn, each of which expects some bytes.
__device__ __forceinline__ void start_barrier(uint64_t& barrier) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.mbarrier_init.release.cluster;" ::"r"(shared_address(&barrier))
      : "memory");
}
__device__ __forceinline__ void expect_bytes(uint64_t& barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_bytes(uint64_t& barrier, uint32_t phase) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(&barrier)), "r"(phase)
        : "memory");
}
// Addresses and length are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, uint32_t bytes, uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}
// What this thread stored comes before what is copied there later.
__device__ __forceinline__ void order_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Blocks of a cluster reach each other's shared memory.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ unsigned cluster_ranks() {
  unsigned ranks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
  return ranks;
}
// For all threads of all blocks; what was stored before it can be read behind it.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t remote_address(const void* mine, unsigned rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(rank));
  return address;
}
// Stores into another block's memory, at the place of `mine`, and counts the bytes at its barrier.
__device__ __forceinline__ void tell(const float* mine, unsigned rank, float value, const uint64_t& barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   remote_address(mine, rank)),
               "r"(__float_as_uint(value)), "r"(remote_address(&barrier, rank))
               : "memory");
}
__device__ __forceinline__ void tell(const float2* mine, unsigned rank, float2 value,
                                     const uint64_t& barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                   remote_address(mine, rank)),
               "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)),
               "r"(remote_address(&barrier, rank))
               : "memory");
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
  allow_shared_memory(kernel, bytes);
  int per_multiprocessor = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel,
                                                           static_cast<int>(block.x * block.y), bytes),
             "planning a kernel");
  return std::clamp<int64_t>(groups, 1,
                             int64_t{per_multiprocessor} * runtime_of(ctx).properties().multiprocessors);
}

// As many clusters of `ranks` blocks as the GPU holds at once, and no more than there are groups of rows.
template <class... Parameters, class... Args>
void launch_clusters(const char* name, void (*kernel)(Parameters...), int ranks, int64_t groups,
                     unsigned threads, size_t bytes, cudaStream_t stream, Args... args) {
  allow_shared_memory(kernel, bytes);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(ranks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(ranks);
  config.blockDim = threads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "planning a kernel");
  config.gridDim.x *= static_cast<unsigned>(std::clamp<int64_t>(groups, 1, clusters));
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(args)...), name);
}

}  // namespace megatron::cuda
