#include "megatron/kernels/cuda/gemm/grouped_gemm_wgrad.cuh"

namespace megatron::cuda {
namespace {

using namespace grouped;

// Persistent sm_90a grouped GEMM.
// Math: forward and input gradient: c[rows of e] = a[rows of e] · b[e].
// Grid: one block an SM; a TileScheduler walks all experts' tiles from the offsets on the device. A block
// has 384 threads. One thread of the producer warpgroup issues TMA; two consumer warpgroups run wgmma
// m64n256k16, each on 64 rows of the 128 × 256 tile.
// Shared memory: 3 stages of A (128 × 64) and B (256 × 64) with the 128-byte swizzle, then the output buffer,
// then the barriers. The output is stored from its buffer while the next tile runs.
// Barriers: full[stage] counts TMA bytes, empty[stage] the 8 consumer warps.
[[maybe_unused]] constexpr int kTileK = kPanel;

template <class T, bool BKMajor>
__global__ void __launch_bounds__(kBlockThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                        const __grid_constant__ Params params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  const uint32_t stages = shared_address(memory), output = stages + kOutput;
  auto smem_a = [&](int s) { return stages + s * kStageBytes; };
  auto smem_b = [&](int s) { return smem_a(s) + kABytes; };
  auto full = [&](int s) { return Barrier{stages + kBarriers + 8 * s}; };
  auto empty = [&](int s) { return full(kStages + s); };
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      full(s).init(1);
      empty(s).init(kConsumerThreads / 32);
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
          empty(pipe.stage).wait(pipe.parity ^ 1);
          full(pipe.stage).arrive_expect_tx(kStageBytes);
          load_operand<kTileM, true>(smem_a(pipe.stage), a, full(pipe.stage), tile.row0, k, 0);
          load_operand<kTileN, BKMajor>(smem_b(pipe.stage), b, full(pipe.stage), tile.column0, k,
                                        tile.expert);
        }
    return;
  }
  sm90::setmaxnreg_inc<232>();
  const int panel = threadIdx.x / 128 - 1;
  auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) empty(stage).arrive();
  };
  float acc[128];
  while (scheduler.next(tile)) {
    if (tile.row0 + panel * kPanel >= tile.rows_end) {
      // The expert has no row for this warpgroup: it only releases the stages.
      for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
        full(pipe.stage).wait(pipe.parity);
        release(pipe.stage);
      }
      continue;
    }
    int last = 0;
    for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
      full(pipe.stage).wait(pipe.parity);
      const uint64_t a_desc = sm90::smem_desc(smem_a(pipe.stage) + panel * kPanelBytes),
                     b_desc = sm90::smem_desc(smem_b(pipe.stage));
      sm90::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kTileK / 16; ++i)
        sm90::wgmma_mma<T, true, BKMajor>(acc, sm90::advance_desc<true>(a_desc, i),
                                          sm90::advance_desc<BKMajor>(b_desc, i), k || i);
      sm90::wgmma_commit();
      // The wgmma of the last stage is done; this one may run.
      if (k) {
        sm90::wgmma_wait<1>();
        release(last);
      }
      last = pipe.stage;
    }
    sm90::wgmma_wait<0>();
    release(last);
    store_rows<T>(params, tile, output, acc);
  }
  sm90::bulk_wait_read<0>();
#else
  __trap();
#endif
}

template <class T>
constexpr DType kType = std::is_same_v<T, bfloat> ? DType::BF16 : DType::F16;

template <class T, bool BKMajor>
bool launch(const KernelContext& ctx, const Matrices& a, const Matrices& b, const Params& params) {
  CUtensorMap a_map, b_map;
  if (!make_tensor_map(kType<T>, a, 128, kTileM, a_map) ||
      !make_tensor_map(kType<T>, b, 128, BKMajor ? kTileN : kPanel, b_map))
    return false;
  auto kernel = grouped_gemm_kernel<T, BKMajor>;
  allow_shared_memory(kernel, kSharedBytes);
  kernel<<<runtime_of(ctx).properties().sm_count, kBlockThreads, kSharedBytes, stream_of(ctx)>>>(a_map, b_map,
                                                                                                 params);
  return true;
}

// wgmma m64n256k16 of 16-bit operands whose rows run along K.
template <class T>
struct WgradMainloop {
  struct Arguments {};
  static constexpr int kTileK = kPanel;
  static constexpr bool kKMajor = false;

  // Zeroes the tail of a stage where K ends inside it: rows of the next expert follow. All consumers call it.
  static __device__ __forceinline__ void clear_tail(uint32_t stage, int k_size) {
    for (int panel = 0; panel < (kTileM + kTileN) / kPanel; ++panel)
      for (int i = k_size * 128 + (static_cast<int>(threadIdx.x) - 128) * 16; i < kPanelBytes;
           i += kConsumerThreads * 16)
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + panel * kPanelBytes + i), "r"(0)
                     : "memory");
    sm90::fence_proxy_async();
    sm90::named_barrier_sync<kConsumerThreads>(1);
  }

  template <class Shared, class Pipe>
  static __device__ __forceinline__ void run(const Shared& shared, Pipe& pipe, const Tile& tile, int group,
                                             const Params&, const Arguments&, float (&acc)[128]) {
    if (tile.k_size == 0) {
#pragma unroll
      for (float& value : acc) value = 0;
    }
    int last = 0;
    for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
      shared.full(pipe.stage).wait(pipe.parity);
      if (tile.k_size - k < kTileK) clear_tail(shared.a(pipe.stage), tile.k_size - k);
      const uint64_t a_desc = sm90::smem_desc(shared.a(pipe.stage) + group * kPanelBytes),
                     b_desc = sm90::smem_desc(shared.b(pipe.stage));
      sm90::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kTileK / 16; ++i)
        sm90::wgmma_mma<T, false, false>(acc, sm90::advance_desc<false>(a_desc, i),
                                         sm90::advance_desc<false>(b_desc, i), k || i);
      sm90::wgmma_commit();
      // The wgmma of the last stage is done; this one may run.
      if (k) {
        sm90::wgmma_wait<1>();
        shared.release(last);
      }
      last = pipe.stage;
    }
    sm90::wgmma_wait<0>();
    sm90::wgmma_waited(acc);
    if (tile.k_size) shared.release(last);
  }
};

}  // namespace

template <class T>
bool wgmma_grouped_gemm(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.k == 0) return false;
  const Matrices a{task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows};
  if (task.b_row == 1)
    return launch<T, true>(ctx, a, {task.b, task.k, task.n, task.experts, task.b_column, task.b_expert},
                           params_of(task));
  if (task.b_column == 1)
    return launch<T, false>(ctx, a, {task.b, task.n, task.k, task.experts, task.b_row, task.b_expert},
                            params_of(task));
  return false;
}

template <class T, class Out>
bool wgmma_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.b_column != 1) return false;
  if (std::is_same_v<Out, float> && task.beta != 0 && task.beta != 1) return false;
  return wgrad::launch<WgradMainloop<T>, Out>(
      ctx, kType<T>, {task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows},
      {task.b, task.n, task.rows, 1, task.b_row, task.b_row * task.rows}, params_of(task), {});
}

template bool wgmma_grouped_gemm<bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm<half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, float>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, float>(const KernelContext&, const GroupedTask&);

}  // namespace megatron::cuda
