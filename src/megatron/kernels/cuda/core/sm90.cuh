#pragma once

#include <cuda.h>

#include "megatron/kernels/cuda/core/shared_memory.cuh"

// Wrappers of sm_90a instructions: TMA (cp.async.bulk), mbarrier, stmatrix and ldmatrix, wgmma.
namespace megatron::cuda::sm90 {

// mbarrier. A phase ends when all arrivals and all expected bytes have come. Phases alternate between parity
// 0 and 1; the phase before the first has parity 1.
struct Barrier {
  uint32_t address;

  __device__ void init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
  }
  __device__ void arrive_expect_tx(uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
  }
  __device__ void arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }
  // Arrives at the barrier at the same address in block `rank` of the cluster.
  __device__ void arrive_cluster(uint32_t rank) const {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(address),
        "r"(rank)
        : "memory");
  }
  __device__ void wait(uint32_t parity) const {
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred done;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, done;\n}"
          : "=r"(done)
          : "r"(address), "r"(parity)
          : "memory");
    } while (!done);
  }
};

// Stage and parity of a thread in a circular buffer of stages.
template <int Stages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

// TMA load of one box of a 3-D tensor, coordinates innermost first. `full` counts its bytes. Elements
// outside of the tensor become zeros.
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, Barrier full, int x, int y,
                                         int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(full.address), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// TMA load multicast to the same address in all Blocks of the cluster; each block's `full` counts the bytes.
template <int Blocks>
__device__ __forceinline__ void tma_multicast(uint32_t to, const CUtensorMap& map, Barrier full, int x, int y,
                                              int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(full.address), "r"(x), "r"(y), "r"(z), "h"(static_cast<uint16_t>((1 << Blocks) - 1))
      : "memory");
}

// Bulk load of bytes (a multiple of 16) from a 16-byte boundary; `full` counts them.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, int bytes, Barrier full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(full.address)
      : "memory");
}

// TMA store of a box, TMA reduce-add of a box, and bulk store of bytes (a multiple of 16). Elements outside
// of the tensor are left out. bulk_wait_read<N> lets the issuing thread wait until all but its last N have
// read shared memory.
__device__ __forceinline__ void tma_store(const CUtensorMap& map, uint32_t from, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(from), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void tma_reduce_add(const CUtensorMap& map, uint32_t from, int x, int y, int z) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(from), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, int bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
template <int N>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

// L2 cache policy for data that is read or written once, and TMA copies with a policy.
__device__ __forceinline__ uint64_t l2_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, Barrier full, int x, int y,
                                         int z, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(full.address), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap& map, uint32_t from, int x, int y, int z,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint "
      "[%0, {%2, %3, %4}], [%1], %5;\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(from), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

// stmatrix and ldmatrix of four 8 × 8 matrices of 16-bit elements. Lane 8 i + r gives the address of row r
// of matrix i. packed[i] of lane t holds elements t % 4 · 2 and the next of row t / 4 of matrix i: the
// layout of wgmma accumulators packed to bf16x2.
__device__ __forceinline__ void stmatrix(uint32_t row, const uint32_t* packed) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(packed[0]),
               "r"(packed[1]), "r"(packed[2]), "r"(packed[3])
               : "memory");
}
__device__ __forceinline__ void ldmatrix(uint32_t row, uint32_t* packed) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(packed[0]), "=r"(packed[1]), "=r"(packed[2]), "=r"(packed[3])
               : "r"(row)
               : "memory");
}

// Named barrier `id` of Threads threads of the block.
template <int Threads>
__device__ __forceinline__ void named_barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Makes initialized mbarriers visible to TMA and the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Makes this thread's writes to shared memory visible to TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Registers a thread of this warpgroup may use from here on.
template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// wgmma is asynchronous: fence, issue any number, commit them as one group, wait until at most N groups are
// in flight.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps reads of accumulators behind the wait before it: the compiler knows of no other order between them.
template <int N>
__device__ __forceinline__ void wgmma_waited(float (&acc)[N]) {
#pragma unroll
  for (float& value : acc) asm volatile("" : "+f"(value)::"memory");
}

// Operands lie in panels of 64 × 64 16-bit elements, as TMA writes them with the 128-byte swizzle: rows of
// 128 bytes, eight rows to a swizzle atom. In a K-major operand the elements of a row run along K; otherwise
// the rows do, and wgmma transposes.
inline constexpr int kPanel = 64, kPanelBytes = kPanel * kPanel * 2;

// wgmma's shared-memory descriptor: the address without the block's rank in a cluster, the stride between
// panels (used where rows run along K), the stride between groups of eight rows, and the swizzle.
__device__ __forceinline__ uint64_t smem_desc(uint32_t address) {
  constexpr uint64_t kPanels = kPanelBytes >> 4, kBlocks = 8 * 128 >> 4, kSwizzle128 = 1;
  return (address & 0x3ffff) >> 4 | kPanels << 16 | kBlocks << 32 | kSwizzle128 << 62;
}
// The descriptor `step` times 16 further along K.
template <bool KMajor>
__device__ __forceinline__ uint64_t advance_desc(uint64_t desc, int step) {
  return desc + step * ((KMajor ? 32 : 16 * 128) >> 4);
}

// wgmma m64n256k16: acc (64 × 256, fp32) = a · b, plus acc where `accumulate`. Thread t of the warpgroup
// holds row t / 32 · 16 + t % 32 / 4 + 8 h and column 8 j + t % 4 · 2 + i in acc[4 j + 2 h + i].
#define ACC8(i)                                                                                           \
  "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3]), "+f"(acc[i + 4]), "+f"(acc[i + 5]), \
      "+f"(acc[i + 6]), "+f"(acc[i + 7])
#define WGMMA_M64N256K16(type)                                                                            \
  asm volatile(                                                                                           \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                                   \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                        \
      " {"                                                                                                \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                            \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"    \
      "}, %128, %129, add, 1, 1, %131, %132;\n}"                                                          \
      : ACC8(0), ACC8(8), ACC8(16), ACC8(24), ACC8(32), ACC8(40), ACC8(48), ACC8(56), ACC8(64), ACC8(72), \
        ACC8(80), ACC8(88), ACC8(96), ACC8(104), ACC8(112), ACC8(120)                                     \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(AKMajor ? 0 : 1), "n"(BKMajor ? 0 : 1))
template <class T, bool AKMajor, bool BKMajor>
__device__ __forceinline__ void wgmma_mma(float (&acc)[128], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (std::is_same_v<T, bfloat>)
    WGMMA_M64N256K16("bf16");
  else
    WGMMA_M64N256K16("f16");
}

// wgmma m64n128k32 of K-major fp8 operands, which is the only order that they may have: acc (64 × 128) as
// above.
#define WGMMA_M64N128K32(types)                                                          \
  asm volatile(                                                                          \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." types                               \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
      "}, %64, %65, add, 1, 1;\n}"                                                       \
      : ACC8(0), ACC8(8), ACC8(16), ACC8(24), ACC8(32), ACC8(40), ACC8(48), ACC8(56)     \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
template <class A, class B>
__device__ __forceinline__ void wgmma_mma_fp8(float (&acc)[64], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(std::is_same_v<B, __nv_fp8_e4m3>);
  if constexpr (std::is_same_v<A, __nv_fp8_e4m3>)
    WGMMA_M64N128K32("e4m3.e4m3");
  else
    WGMMA_M64N128K32("e5m2.e4m3");
}
#undef WGMMA_M64N128K32
#undef WGMMA_M64N256K16
#undef ACC8

}  // namespace megatron::cuda::sm90
