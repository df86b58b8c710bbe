#include "megatron/kernels/cuda/gemm/grouped_gemm_fp8.cuh"
#include "megatron/kernels/cuda/gemm/grouped_gemm_wgmma.cuh"

namespace megatron::cuda {
namespace {

using namespace grouped;

// Persistent sm_90a grouped GEMM of fp8 operands.
// Math: as grouped_gemm_wgmma.cu, times the scales of both operands. Tensor cores keep some fourteen bits of
// a sum, so that each 128 along K are summed from zero and added to fp32 sums in registers, which is also
// where scales of blocks are multiplied in. Grid, shared memory and barriers are those of
// grouped_gemm_wgmma.cu, with 128 of K a stage. Both operands are K-major, since fp8 wgmma take no others. A
// consumer warpgroup has 64 rows and makes the 256 columns of a stage in two halves by wgmma m64n128k32: 64
// accumulators and 128 sums fit into its registers. While it adds, the other one multiplies.
[[maybe_unused]] constexpr int kTileK = 128;
[[maybe_unused]] constexpr int kHalfN = kTileN / 2;

// Zeroes the tail of a stage where K ends inside it: rows of the next expert follow. K is a multiple of 16,
// the bytes that the swizzle moves together. All consumers call it.
[[maybe_unused]] __device__ __forceinline__ void clear_tail(uint32_t stage, int k_size) {
  for (int row = static_cast<int>(threadIdx.x) - 128; row < kTileM + kTileN; row += kConsumerThreads)
    for (int chunk = k_size / 16; chunk < kTileK / 16; ++chunk)
      asm volatile(
          "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + row * 128 + (chunk ^ row % 8) * 16), "r"(0)
          : "memory");
  sm90::fence_proxy_async();
  sm90::named_barrier_sync<kConsumerThreads>(1);
}

// The scales of blocks that a thread needs of one stage: of its two rows, and of the 128 columns of a half,
// one for all or, with RaggedK, one for each.
template <bool RaggedK, bool Blocks>
struct StageScales {
  float row[2], part[2];  // part: unused with RaggedK
  const float* column;    // of this thread's first column of the tile

  __device__ StageScales(const Fp8Scales& scales, const Params& params, const Tile& tile, int k) {
    if constexpr (!Blocks) return;
    const int lane = threadIdx.x % 32,
              first = tile.row0 + (static_cast<int>(threadIdx.x) / 32 - 4) * 16 + lane / 4,
              block = (RaggedK ? tile.k0 + k : k) / kTileK;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = first + 8 * h;
      row[h] = at < tile.rows_end ? __ldg(scales.a + at * scales.a_side + block * scales.a_block) : 0.f;
    }
    column = scales.b + (RaggedK ? 0 : tile.expert * scales.b_expert) + block * scales.b_block;
    if constexpr (RaggedK) {
      column += tile.column0 + lane % 4 * 2;
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int from = tile.column0 + h * kHalfN;
        part[h] = from < params.n ? __ldg(column + from / kHalfN * scales.b_side) : 0.f;
      }
    }
  }
};

// sum += acc of one half, times the scales of blocks.
template <bool RaggedK, bool Blocks>
__device__ __forceinline__ void add_half(float (&sum)[128], const float (&acc)[64], int part,
                                         const StageScales<RaggedK, Blocks>& scales, int columns) {
#pragma unroll
  for (int j = 0; j < kHalfN / 8; ++j) {
    float2 across{};
    if constexpr (Blocks && RaggedK)
      if (part * kHalfN + 8 * j < columns)
        across = __ldg(reinterpret_cast<const float2*>(scales.column + part * kHalfN + 8 * j));
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& to = sum[part * 64 + 4 * j + 2 * h + i];
        const float value = acc[4 * j + 2 * h + i];
        if constexpr (Blocks)
          to = fmaf(value, scales.row[h] * (RaggedK ? (i ? across.y : across.x) : scales.part[part]), to);
        else
          to += value;
      }
  }
}

// c: the tensor map of the output, for fp32 alone.
template <class A, class Out, bool RaggedK, bool Blocks>
__global__ void __launch_bounds__(kBlockThreads, 1)
    fp8_grouped_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                       const __grid_constant__ CUtensorMap c, const __grid_constant__ Params params,
                       const __grid_constant__ Fp8Scales scales) {
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
          load_operand<kTileM, true>(smem_a(pipe.stage), a, full(pipe.stage), tile.row0, tile.k0 + k, 0);
          load_operand<kTileN, true>(smem_b(pipe.stage), b, full(pipe.stage), tile.column0, tile.k0 + k,
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
  float sum[128], acc[64];
  while (scheduler.next(tile)) {
    if (!RaggedK && tile.row0 + panel * kPanel >= tile.rows_end) {
      // The expert has no row for this warpgroup: it only releases the stages.
      for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
        full(pipe.stage).wait(pipe.parity);
        release(pipe.stage);
      }
      continue;
    }
#pragma unroll
    for (float& value : sum) value = 0;
    for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
      const StageScales<RaggedK, Blocks> of_stage(scales, params, tile, k);
      full(pipe.stage).wait(pipe.parity);
      if (RaggedK && tile.k_size - k < kTileK) clear_tail(smem_a(pipe.stage), tile.k_size - k);
      const uint64_t a_desc = sm90::smem_desc(smem_a(pipe.stage) + panel * kPanelBytes);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint64_t b_desc = sm90::smem_desc(smem_b(pipe.stage) + part * kHalfN * 128);
        sm90::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTileK / 32; ++i)
          sm90::wgmma_mma_fp8<A, __nv_fp8_e4m3>(acc, sm90::advance_desc<true>(a_desc, i),
                                                sm90::advance_desc<true>(b_desc, i), i > 0);
        sm90::wgmma_commit();
        if constexpr (!Shared::kWide)
          if (part == 0 && adds && k == kTileK) load_old_rows<Out>({params, tile, output}, my_old);
        sm90::wgmma_wait<0>();
        sm90::wgmma_waited(acc);
        if (part == 1) release(pipe.stage);
        add_half(sum, acc, part, of_stage, params.n - tile.column0);
      }
    }
    if constexpr (!Blocks) {
      const float scale =
          __ldg(scales.a + tile.expert * scales.a_side) * __ldg(scales.b + tile.expert * scales.b_side);
#pragma unroll
      for (float& value : sum) value *= scale;
    }
    if constexpr (Shared::kWide) {
      store_tile_fp32(params, c, tile, sum, output, panel);
    } else {
      const WarpRows<Out> rows(params, tile, output);
      if (adds) {
        if (tile.k_size <= kTileK) load_old_rows(rows, my_old);
        my_old.wait(old_parity);
        old_parity ^= 1;
        add_old_rows(rows, params.beta, sum);
      }
      store_rows(rows, sum);
    }
  }
  sm90::bulk_wait_read<0>();
#else
  __trap();
#endif
}

template <class A, class Out, bool RaggedK, bool Blocks>
bool launch(const KernelContext& ctx, const Matrices& a, const Matrices& b, const Params& params,
            const Fp8Scales& scales) {
  CUtensorMap a_map, b_map, c_map{};
  if (!make_tensor_map(DType::F8E4M3, a, 128, kTileM, a_map) ||
      !make_tensor_map(DType::F8E4M3, b, 128, kTileN, b_map))
    return false;
  if constexpr (Layout<Out>::kWide)
    if (!make_tensor_map(DType::F32,
                         {params.c, params.n, params.m, params.experts, params.c_row, params.c_expert}, 128,
                         kPanel, c_map))
      return false;
  auto kernel = fp8_grouped_kernel<A, Out, RaggedK, Blocks>;
  allow_shared_memory(kernel, Layout<Out>::kBytes);
  kernel<<<runtime_of(ctx).properties().sm_count, kBlockThreads, Layout<Out>::kBytes, stream_of(ctx)>>>(
      a_map, b_map, c_map, params, scales);
  return true;
}

template <class Out, bool RaggedK>
bool launch(const KernelContext& ctx, const Matrices& a, const Matrices& b, const Params& params,
            const Fp8Scales& scales) {
  if (scales.b_e5m2) return false;
  auto run = [&]<class A>(Type<A>) {
    return scales.blocks ? launch<A, Out, RaggedK, true>(ctx, a, b, params, scales)
                         : launch<A, Out, RaggedK, false>(ctx, a, b, params, scales);
  };
  return scales.a_e5m2 ? run(Type<__nv_fp8_e5m2>{}) : run(Type<__nv_fp8_e4m3>{});
}

}  // namespace

template <class Out>
bool fp8_grouped_gemm(const KernelContext& ctx, const GroupedTask& task, const Fp8Scales& scales) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.b_row != 1 || task.k == 0) return false;
  return launch<Out, false>(ctx, {task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows},
                            {task.b, task.k, task.n, task.experts, task.b_column, task.b_expert},
                            params_of(task), scales);
}

template <class Out>
bool fp8_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task, const Fp8Scales& scales) {
  if (!can_run(ctx, task) || task.a_row != 1 || task.b_row != 1) return false;
  if (std::is_same_v<Out, float> && task.beta != 0 && task.beta != 1) return false;
  if (scales.blocks && !(aligned(scales.b, 8) && scales.b_side == 1 && scales.b_block % 2 == 0)) return false;
  return launch<Out, true>(ctx, {task.a, task.rows, task.k, 1, task.a_column, task.a_column * task.k},
                           {task.b, task.rows, task.n, 1, task.b_column, task.b_column * task.n},
                           params_of(task), scales);
}

template bool fp8_grouped_gemm<bfloat>(const KernelContext&, const GroupedTask&, const Fp8Scales&);
template bool fp8_grouped_gemm<half>(const KernelContext&, const GroupedTask&, const Fp8Scales&);
template bool fp8_grouped_gemm_weight<bfloat>(const KernelContext&, const GroupedTask&, const Fp8Scales&);
template bool fp8_grouped_gemm_weight<half>(const KernelContext&, const GroupedTask&, const Fp8Scales&);
template bool fp8_grouped_gemm_weight<float>(const KernelContext&, const GroupedTask&, const Fp8Scales&);

}  // namespace megatron::cuda
