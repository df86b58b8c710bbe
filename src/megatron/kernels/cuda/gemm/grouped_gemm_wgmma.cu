#include "megatron/kernels/cuda/gemm/grouped_gemm_wgmma.cuh"

namespace megatron::cuda {
namespace {

using namespace grouped;

// Persistent sm_90a grouped GEMM.
// Math: forward and input gradient: c[rows of e] = a[rows of e] · b[e]. Weight gradient (RaggedK): c[e] =
// beta · c[e] + a[rows of e]ᵀ · b[rows of e].
// Grid: one block an SM; a TileScheduler walks all experts' tiles from the offsets on the device. A block
// has 384 threads. One thread of the producer warpgroup issues TMA; two consumer warpgroups run wgmma
// m64n256k16, each on 64 rows of the 128 × 256 tile.
// Shared memory: 3 or 4 stages of A (128 × 64) and B (256 × 64) with the 128-byte swizzle, then the output
// buffer, then the barriers. The output is stored from its buffer while the next tile runs. Old values that
// a 16-bit weight gradient is added to are loaded into the same buffer while the tile's wgmma run.
// Barriers: full[stage] counts TMA bytes, empty[stage] the 8 consumer warps, old[warp] the bytes of a warp's
// old values. Named barrier 1 holds all consumers, 2 and 3 one warpgroup each.
[[maybe_unused]] constexpr int kTileK = kPanel;

// Zeroes the tail of a stage where K ends inside it: rows of the next expert follow. All consumers call it.
[[maybe_unused]] __device__ __forceinline__ void clear_tail(uint32_t stage, int k_size) {
  for (int panel = 0; panel < (kTileM + kTileN) / kPanel; ++panel)
    for (int i = k_size * kPanel * 2 + (static_cast<int>(threadIdx.x) - 128) * 16; i < kPanelBytes;
         i += kConsumerThreads * 16)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + panel * kPanelBytes + i), "r"(0)
                   : "memory");
  sm90::fence_proxy_async();
  sm90::named_barrier_sync<kConsumerThreads>(1);
}

// c: the tensor map of the output, for fp32 alone.
template <class T, class Out, bool AKMajor, bool BKMajor, bool RaggedK>
__global__ void __launch_bounds__(kBlockThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                        const __grid_constant__ CUtensorMap c, const __grid_constant__ Params params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  using Shared = Layout<Out>;
  constexpr int kStages = Shared::kStages;
  const uint32_t stages = shared_address(memory), output = stages + Shared::kOutput;
  auto smem_a = [&](int s) { return stages + s * kStageBytes; };
  auto smem_b = [&](int s) { return smem_a(s) + kABytes; };
  auto full = [&](int s) { return Barrier{stages + Shared::kBarriers + 8 * s}; };
  auto empty = [&](int s) { return full(kStages + s); };
  auto old = [&](int warp) { return full(2 * kStages + warp); };
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      full(s).init(1);
      empty(s).init(kConsumerThreads / 32);
    }
    for (int warp = 0; warp < kConsumerThreads / 32; ++warp) old(warp).init(1);
    sm90::fence_mbarrier_init();
  }
  __syncthreads();
  TileScheduler<RaggedK> scheduler(params);
  Tile tile;
  sm90::PipelineState<kStages> pipe;
  if (threadIdx.x < 128) {
    sm90::setmaxnreg_dec<40>();
    if (threadIdx.x == 0)
      while (scheduler.next(tile))
        for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
          empty(pipe.stage).wait(pipe.parity ^ 1);
          full(pipe.stage).arrive_expect_tx(kStageBytes);
          load_operand<kTileM, AKMajor>(smem_a(pipe.stage), a, full(pipe.stage), tile.row0, tile.k0 + k, 0);
          load_operand<kTileN, BKMajor>(smem_b(pipe.stage), b, full(pipe.stage), tile.column0, tile.k0 + k,
                                        RaggedK ? 0 : tile.expert);
        }
    return;
  }
  sm90::setmaxnreg_inc<232>();
  const int panel = threadIdx.x / 128 - 1;
  auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) empty(stage).arrive();
  };
  const bool adds = RaggedK && !Shared::kWide && params.beta != 0;
  const Barrier my_old = old(static_cast<int>(threadIdx.x) / 32 - 4);
  uint32_t old_parity = 0;
  float acc[128];
  while (scheduler.next(tile)) {
    if (!RaggedK && tile.row0 + panel * kPanel >= tile.rows_end) {
      // The expert has no row for this warpgroup: it only releases the stages.
      for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
        full(pipe.stage).wait(pipe.parity);
        release(pipe.stage);
      }
      continue;
    }
    if (RaggedK && tile.k_size == 0) {
#pragma unroll
      for (float& value : acc) value = 0;
    }
    int last = 0;
    for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
      full(pipe.stage).wait(pipe.parity);
      if (RaggedK && tile.k_size - k < kTileK) clear_tail(smem_a(pipe.stage), tile.k_size - k);
      const uint64_t a_desc = sm90::smem_desc(smem_a(pipe.stage) + panel * kPanelBytes),
                     b_desc = sm90::smem_desc(smem_b(pipe.stage));
      sm90::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kTileK / 16; ++i)
        sm90::wgmma_mma<T, AKMajor, BKMajor>(acc, sm90::advance_desc<AKMajor>(a_desc, i),
                                             sm90::advance_desc<BKMajor>(b_desc, i), k || i);
      sm90::wgmma_commit();
      // The wgmma of the last stage is done; this one may run.
      if (k) {
        sm90::wgmma_wait<1>();
        release(last);
      }
      last = pipe.stage;
      if constexpr (!Shared::kWide)
        if (adds && k == kTileK) load_old_rows<Out>({params, tile, output}, my_old);
    }
    sm90::wgmma_wait<0>();
    if (tile.k_size) release(last);
    if constexpr (Shared::kWide) {
      store_tile_fp32(params, c, tile, acc, output, panel);
    } else {
      const WarpRows<Out> rows(params, tile, output);
      if (adds) {
        if (tile.k_size <= kTileK) load_old_rows(rows, my_old);
        my_old.wait(old_parity);
        old_parity ^= 1;
        add_old_rows(rows, params.beta, acc);
      }
      store_rows(rows, acc);
    }
  }
  sm90::bulk_wait_read<0>();
#else
  __trap();
#endif
}

template <class T, class Out, bool AKMajor, bool BKMajor, bool RaggedK>
bool launch(const KernelContext& ctx, const Matrices& a, const Matrices& b, const Params& params) {
  CUtensorMap a_map, b_map, c_map{};
  constexpr DType kType = std::is_same_v<T, bfloat> ? DType::BF16 : DType::F16;
  if (!make_tensor_map(kType, a, 128, AKMajor ? kTileM : kPanel, a_map) ||
      !make_tensor_map(kType, b, 128, BKMajor ? kTileN : kPanel, b_map))
    return false;
  if constexpr (Layout<Out>::kWide)
    if (!make_tensor_map(DType::F32,
                         {params.c, params.n, params.m, params.experts, params.c_row, params.c_expert}, 128,
                         kPanel, c_map))
      return false;
  auto kernel = grouped_gemm_kernel<T, Out, AKMajor, BKMajor, RaggedK>;
  allow_shared_memory(kernel, Layout<Out>::kBytes);
  kernel<<<runtime_of(ctx).properties().sm_count, kBlockThreads, Layout<Out>::kBytes, stream_of(ctx)>>>(
      a_map, b_map, c_map, params);
  return true;
}

}  // namespace

template <class T>
bool wgmma_grouped_gemm(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.k == 0) return false;
  const Matrices a{task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows};
  if (task.b_row == 1)
    return launch<T, T, true, true, false>(
        ctx, a, {task.b, task.k, task.n, task.experts, task.b_column, task.b_expert}, params_of(task));
  if (task.b_column == 1)
    return launch<T, T, true, false, false>(
        ctx, a, {task.b, task.n, task.k, task.experts, task.b_row, task.b_expert}, params_of(task));
  return false;
}

template <class T, class Out>
bool wgmma_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.b_column != 1) return false;
  if (std::is_same_v<Out, float> && task.beta != 0 && task.beta != 1) return false;
  return launch<T, Out, false, false, true>(
      ctx, {task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows},
      {task.b, task.n, task.rows, 1, task.b_row, task.b_row * task.rows}, params_of(task));
}

template bool wgmma_grouped_gemm<bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm<half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, float>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, float>(const KernelContext&, const GroupedTask&);

}  // namespace megatron::cuda
