#pragma once

#include "megatron/kernels/cuda/gemm/grouped_gemm_wgmma.cuh"

// Persistent sm_90a grouped GEMM of weight gradients, for operands of 16 bits and of fp8.
// Math: c[e] = beta · c[e] + a[rows of e]ᵀ · b[rows of e]; the rows of an expert are the K dimension.
// Grid: one block an SM; a TileScheduler walks all experts' tiles of 128 × 256 from the offsets on the
// device. A block has 384 threads: two consumer warpgroups with 64 rows of the tile each, and a producer
// warpgroup, of which three threads work. One issues the TMA loads of operands. The other two, one for each
// consumer warpgroup, move its sums of 16 bits: K is short where experts are many, so that sums are most of
// what is moved, and consumers must not wait for any of it to leave. Shared memory: 3 stages (4 for fp32
// sums) of A (128 × 128 bytes) and B (256 × 128 bytes) with the 128-byte swizzle, then the output of each
// consumer warpgroup, then the barriers. 16-bit output: four boxes of 64 rows of 128 bytes with the same
// swizzle, which hold the old values first. fp32 output: two boxes in turn. Barriers: full[stage] counts TMA
// bytes, empty[stage] the 8 consumer warps. Of each consumer warpgroup: ready says that its output may be
// written, with the old values in it where there are any, and packed counts its 4 warps that have. Named
// barrier 1 holds all consumers, 2 and 3 one warpgroup each.
namespace megatron::cuda::wgrad {

using namespace grouped;

inline constexpr int kOutputRows = 64, kBoxBytes = kOutputRows * 128;

template <class Out>
struct Layout {
  static constexpr bool kWide = sizeof(Out) == 4;
  static constexpr int kStages = kWide ? 4 : 3, kBoxes = kWide ? 2 : 4;
  static constexpr int kOutput = kStages * kStageBytes, kBarriers = kOutput + 2 * kBoxes * kBoxBytes,
                       kBytes = kBarriers + 8 * (2 * kStages + 4);
};

template <class Out>
struct SharedMemory {
  using Offsets = Layout<Out>;
  static constexpr int kStages = Offsets::kStages;
  uint32_t address;

  __device__ uint32_t a(int stage) const { return address + stage * kStageBytes; }
  __device__ uint32_t b(int stage) const { return a(stage) + kABytes; }
  __device__ uint32_t box(int group, int i) const {
    return address + Offsets::kOutput + (group * Offsets::kBoxes + i) * kBoxBytes;
  }
  __device__ Barrier full(int stage) const { return {address + Offsets::kBarriers + 8 * stage}; }
  __device__ Barrier empty(int stage) const { return full(kStages + stage); }
  __device__ Barrier ready(int group) const { return full(2 * kStages + group); }
  __device__ Barrier packed(int group) const { return ready(2 + group); }
  // One lane of each warp that has read the stage.
  __device__ void release(int stage) const {
    if (threadIdx.x % 32 == 0) empty(stage).arrive();
  }
};

// beta · c + acc where old values lie in the boxes, or acc, rounded once.
template <class Out>
__device__ __forceinline__ void pack_tile(const SharedMemory<Out>& shared, int group, bool adds, float beta,
                                          const float (&acc)[128]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int j = 0; j < 32; j += 2) {
    const uint32_t row =
        shared.box(group, j / 8) + (warp * 16 + lane % 16) * 128 + ((j % 8 + lane / 16) ^ lane % 8) * 16;
    uint32_t packed[4];
    if (adds) sm90::ldmatrix(row, packed);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float sum[2] = {acc[4 * j + 2 * q], acc[4 * j + 2 * q + 1]};
      if (adds)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          sum[i] = fmaf(beta, widen(reinterpret_cast<const Vec<Out, 2>&>(packed[q]).v[i]), sum[i]);
      packed[q] = narrow_pair<Out>(sum[0], sum[1]);
    }
    sm90::stmatrix(row, packed);
  }
}

// c = acc or, with beta 1, c += acc in fp32: a warpgroup stores its 64 rows by TMA, 64 × 32 at a time.
__device__ __forceinline__ void store_tile(const SharedMemory<float>& shared, int group, const CUtensorMap& c,
                                           const Params& params, const Tile& tile, const float (&acc)[128]) {
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const bool leader = threadIdx.x % 128 == 0;
#pragma unroll
  for (int part = 0; part < kTileN / 32; ++part) {
    const uint32_t box = shared.box(group, part % 2);
    if (leader) sm90::bulk_wait_read<1>();
    sm90::named_barrier_sync<128>(2 + group);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * h, chunk = (2 * j + quad / 2) ^ row % 8,
                  at = part * 16 + 4 * j + 2 * h;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(box + row * 128 + chunk * 16 + quad % 2 * 8),
                     "f"(acc[at]), "f"(acc[at + 1])
                     : "memory");
      }
    sm90::fence_proxy_async();
    sm90::named_barrier_sync<128>(2 + group);
    if (leader) {
      const int column = tile.column0 + part * 32, row = tile.row0 + group * kOutputRows;
      if (params.beta != 0)
        sm90::tma_reduce_add(c, box, column, row, tile.expert);
      else
        sm90::tma_store(c, box, column, row, tile.expert);
    }
  }
}

// One thread: brings old values, and takes sums away when all warps of the warpgroup have packed theirs.
template <class Out>
__device__ void move_sums(const SharedMemory<Out>& shared, int group, const CUtensorMap& c,
                          const Params& params) {
  TileScheduler<true> scheduler(params);
  Tile tile;
  const uint64_t policy = sm90::l2_evict_first();
  for (uint32_t parity = 0; scheduler.next(tile); parity ^= 1) {
    const int row = tile.row0 + group * kOutputRows;
    sm90::bulk_wait_read<0>();
    if (params.beta != 0) {
      shared.ready(group).arrive_expect_tx(4 * kBoxBytes);
      for (int i = 0; i < 4; ++i)
        sm90::tma_load(shared.box(group, i), c, shared.ready(group), tile.column0 + i * kPanel, row,
                       tile.expert, policy);
    } else {
      shared.ready(group).arrive();
    }
    shared.packed(group).wait(parity);
    for (int i = 0; i < 4; ++i)
      sm90::tma_store(c, shared.box(group, i), tile.column0 + i * kPanel, row, tile.expert, policy);
  }
  sm90::bulk_wait_read<0>();
}

template <class Mainloop, class Out>
__global__ void __launch_bounds__(kBlockThreads, 1)
    wgrad_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                 const __grid_constant__ CUtensorMap c, const __grid_constant__ Params params,
                 const __grid_constant__ typename Mainloop::Arguments arguments) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  constexpr int kStages = Layout<Out>::kStages, kTileK = Mainloop::kTileK;
  const SharedMemory<Out> shared{shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      shared.full(s).init(1);
      shared.empty(s).init(kConsumerThreads / 32);
    }
    for (int group = 0; group < 2; ++group) {
      shared.ready(group).init(1);
      shared.packed(group).init(4);
    }
    sm90::fence_mbarrier_init();
  }
  __syncthreads();
  TileScheduler<true> scheduler(params);
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
          load_operand<kTileM, Mainloop::kAKMajor>(shared.a(pipe.stage), a, full, tile.row0, tile.k0 + k, 0);
          load_operand<kTileN, Mainloop::kBKMajor>(shared.b(pipe.stage), b, full, tile.column0, tile.k0 + k,
                                                   0);
        }
    if constexpr (!Layout<Out>::kWide)
      if (threadIdx.x == 32 || threadIdx.x == 64)
        move_sums(shared, static_cast<int>(threadIdx.x) / 32 - 1, c, params);
    return;
  }
  sm90::setmaxnreg_inc<232>();
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  float acc[128];
  for (uint32_t parity = 0; scheduler.next(tile); parity ^= 1) {
    Mainloop::run(shared, pipe, tile, group, params, arguments, acc);
    if constexpr (Layout<Out>::kWide) {
      store_tile(shared, group, c, params, tile, acc);
    } else {
      shared.ready(group).wait(parity);
      pack_tile(shared, group, params.beta != 0, params.beta, acc);
      sm90::fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared.packed(group).arrive();
    }
  }
  if constexpr (Layout<Out>::kWide) sm90::bulk_wait_read<0>();
#else
  __trap();
#endif
}

// type: of the operands. False where strides or alignment do not fit.
template <class Mainloop, class Out>
bool launch(const KernelContext& ctx, DType type, const Matrices& a, const Matrices& b, const Params& params,
            const typename Mainloop::Arguments& arguments) {
  constexpr DType kOut = std::is_same_v<Out, float>    ? DType::F32
                         : std::is_same_v<Out, bfloat> ? DType::BF16
                                                       : DType::F16;
  CUtensorMap a_map, b_map, c_map;
  if (!make_tensor_map(type, a, 128, Mainloop::kAKMajor ? kTileM : kPanel, a_map) ||
      !make_tensor_map(type, b, 128, Mainloop::kBKMajor ? kTileN : kPanel, b_map) ||
      !make_tensor_map(kOut, {params.c, params.n, params.m, params.experts, params.c_row, params.c_expert},
                       128, kOutputRows, c_map))
    return false;
  auto kernel = wgrad_kernel<Mainloop, Out>;
  constexpr int kBytes = Layout<Out>::kBytes;
  allow_shared_memory(kernel, kBytes);
  kernel<<<runtime_of(ctx).properties().sm_count, kBlockThreads, kBytes, stream_of(ctx)>>>(
      a_map, b_map, c_map, params, arguments);
  return true;
}

}  // namespace megatron::cuda::wgrad
