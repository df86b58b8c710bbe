#pragma once

#include "megatron/kernels/cuda/gemm/grouped_gemm_wgmma.cuh"

// Persistent sm_90a grouped GEMM of forward and input gradients, for operands of 16 bits and of fp8.
// Math: c[rows of e] = a[rows of e] · b[e].
// Grid: one block an SM; a TileScheduler walks all experts' tiles from the offsets on the device. A block
// has 384 threads. One thread of the producer warpgroup issues TMA; two consumer warpgroups run wgmma, each
// on 64 rows of the 128 × 256 tile.
// Shared memory: 3 stages of A (128 × 128 bytes) and B (256 × 128 bytes) with the 128-byte swizzle, then the
// output buffer, then the barriers. The output is stored from its buffer while the next tile runs.
// Barriers: full[stage] counts TMA bytes, empty[stage] the 8 consumer warps.
namespace megatron::cuda::rows {

using namespace grouped;

// Offsets in shared memory. The output lies there as the whole tile; the 16 bytes behind each row keep eight
// rows on different banks.
inline constexpr int kStages = 3, kRowBytes = kTileN * 2 + 16;
inline constexpr int kOutput = kStages * kStageBytes, kBarriers = kOutput + kTileM * kRowBytes,
                     kSharedBytes = kBarriers + 8 * 2 * kStages;

struct SharedMemory {
  uint32_t address;

  __device__ uint32_t a(int stage) const { return address + stage * kStageBytes; }
  __device__ uint32_t b(int stage) const { return a(stage) + kABytes; }
  __device__ uint32_t output() const { return address + kOutput; }
  __device__ Barrier full(int stage) const { return {address + kBarriers + 8 * stage}; }
  __device__ Barrier empty(int stage) const { return full(kStages + stage); }
  // One lane of each warp that has read the stage.
  __device__ void release(int stage) const {
    if (threadIdx.x % 32 == 0) empty(stage).arrive();
  }
};

// c = acc: each warp packs its 16 rows of the tile in shared memory and stores them by bulk copies.
template <class Out>
__device__ __forceinline__ void store_rows(const Params& params, const Tile& tile, uint32_t output,
                                           const float (&acc)[128]) {
  const int first = (static_cast<int>(threadIdx.x) / 32 - 4) * 16, lane = threadIdx.x % 32,
            rows = min(16, tile.rows_end - tile.row0 - first);
  const uint32_t buffer = output + first * kRowBytes;
  sm90::bulk_wait_read<0>();
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kTileN / 8; j += 2) {
    uint32_t packed[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) packed[q] = narrow_pair<Out>(acc[4 * j + 2 * q], acc[4 * j + 2 * q + 1]);
    sm90::stmatrix(buffer + lane % 16 * kRowBytes + (j + lane / 16) * 16, packed);
  }
  sm90::fence_proxy_async();
  __syncwarp();
  if (lane < rows)
    sm90::bulk_store(static_cast<Out*>(params.c) + (tile.row0 + first + lane) * params.c_row + tile.column0,
                     buffer + lane * kRowBytes, min(kTileN, params.n - tile.column0) * 2);
}

template <class Mainloop, class Out>
__global__ void __launch_bounds__(kBlockThreads, 1)
    rows_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                const __grid_constant__ Params params,
                const __grid_constant__ typename Mainloop::Arguments arguments) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  constexpr int kTileK = Mainloop::kTileK;
  const SharedMemory shared{shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      shared.full(s).init(1);
      shared.empty(s).init(kConsumerThreads / 32);
    }
    sm90::fence_mbarrier_init();
  }
  __syncthreads();
  TileScheduler<false> scheduler(params);
  Tile tile;
  sm90::PipelineState<kStages> pipe;
  if (threadIdx.x < 128) {
    sm90::setmaxnreg_dec<40>();
    if (threadIdx.x == 0)
      while (scheduler.next(tile))
        for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
          const Barrier full = shared.full(pipe.stage);
          shared.empty(pipe.stage).wait(pipe.parity ^ 1);
          full.arrive_expect_tx(kStageBytes);
          load_operand<kTileM, Mainloop::kAKMajor>(shared.a(pipe.stage), a, full, tile.row0, k, 0);
          load_operand<kTileN, Mainloop::kBKMajor>(shared.b(pipe.stage), b, full, tile.column0, k,
                                                   tile.expert);
        }
    return;
  }
  sm90::setmaxnreg_inc<232>();
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  float acc[128];
  while (scheduler.next(tile)) {
    if (tile.row0 + group * kPanel >= tile.rows_end) {
      // The expert has no row for this warpgroup: it only releases the stages.
      for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
        shared.full(pipe.stage).wait(pipe.parity);
        shared.release(pipe.stage);
      }
      continue;
    }
    Mainloop::run(shared, pipe, tile, group, params, arguments, acc);
    store_rows<Out>(params, tile, shared.output(), acc);
  }
  sm90::bulk_wait_read<0>();
#else
  __trap();
#endif
}

// type: of the operands. False where strides or alignment do not fit.
template <class Mainloop, class Out>
bool launch(const KernelContext& ctx, DType type, const Matrices& a, const Matrices& b, const Params& params,
            const typename Mainloop::Arguments& arguments) {
  CUtensorMap a_map, b_map;
  if (!make_tensor_map(type, a, 128, Mainloop::kAKMajor ? kTileM : kPanel, a_map) ||
      !make_tensor_map(type, b, 128, Mainloop::kBKMajor ? kTileN : kPanel, b_map))
    return false;
  auto kernel = rows_kernel<Mainloop, Out>;
  allow_shared_memory(kernel, kSharedBytes);
  kernel<<<runtime_of(ctx).properties().sm_count, kBlockThreads, kSharedBytes, stream_of(ctx)>>>(
      a_map, b_map, params, arguments);
  return true;
}

}  // namespace megatron::cuda::rows
