#include "megatron/kernels/cuda/gemm/grouped_gemm_fp8.cuh"
#include "megatron/kernels/cuda/gemm/grouped_gemm_rows.cuh"
#include "megatron/kernels/cuda/gemm/grouped_gemm_wgrad.cuh"

namespace megatron::cuda {
namespace {

using namespace grouped;

// Mainloops of fp8 operands, which multiply by the scales of both. Tensor cores keep some fourteen bits of a
// sum, so that each 128 along K are summed from zero and added to fp32 sums in registers, which is also where
// scales of blocks are multiplied in. Both operands are K-major, since fp8 wgmma take no others. A consumer
// warpgroup has 64 rows and makes the 256 columns of a stage in two halves by wgmma m64n128k32: 64
// accumulators and 128 sums fit into its registers. While it adds, the other one multiplies.
[[maybe_unused]] constexpr int kTileK = 128;
[[maybe_unused]] constexpr int kHalfN = kTileN / 2;

// acc = a · b over the 128 of K of a stage.
template <class A>
__device__ __forceinline__ void multiply_stage(float (&acc)[64], uint64_t a_desc, uint64_t b_desc) {
  sm90::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTileK / 32; ++i)
    sm90::wgmma_mma_fp8<A, __nv_fp8_e4m3>(acc, sm90::advance_desc<true>(a_desc, i),
                                          sm90::advance_desc<true>(b_desc, i), i > 0);
  sm90::wgmma_commit();
  sm90::wgmma_wait<0>();
  sm90::wgmma_waited(acc);
}

// sum += acc of 64 × 128, times the scales of blocks: row(h) of this thread's two rows, column(j) of its two
// columns from 8 j on.
template <class Row, class Column>
__device__ __forceinline__ void add_scaled(float* sum, const float (&acc)[64], Row row, Column column) {
#pragma unroll
  for (int j = 0; j < kHalfN / 8; ++j) {
    const float2 across = column(j);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * j + 2 * h + i;
        sum[at] = fmaf(acc[at], row(h) * (i ? across.y : across.x), sum[at]);
      }
  }
}
__device__ __forceinline__ void add(float* sum, const float (&acc)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i] += acc[i];
}

// The scales of blocks that a thread needs of one stage: of its two rows, and of the 128 columns of a half.
struct StageScales {
  float row[2], part[2];

  __device__ StageScales(const Fp8Scales& scales, const Params& params, const Tile& tile, int k) {
    const int first = tile.row0 + (static_cast<int>(threadIdx.x) / 32 - 4) * 16 + threadIdx.x % 32 / 4,
              block = k / kTileK;
    const float* column = scales.b + tile.expert * scales.b_expert + block * scales.b_block;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = first + 8 * h, from = tile.column0 + h * kHalfN;
      row[h] = at < tile.rows_end ? __ldg(scales.a + at * scales.a_side + block * scales.a_block) : 0.f;
      part[h] = from < params.n ? __ldg(column + from / kHalfN * scales.b_side) : 0.f;
    }
  }
};

struct NoScales {
  __device__ NoScales(const Fp8Scales&, const Params&, const Tile&, int) {}
};

// sum times the scales of whole tensors, or of whole experts.
__device__ __forceinline__ void scale_sums(const Fp8Scales& scales, const Tile& tile, float (&sum)[128]) {
  const float scale =
      __ldg(scales.a + tile.expert * scales.a_side) * __ldg(scales.b + tile.expert * scales.b_side);
#pragma unroll
  for (float& value : sum) value *= scale;
}

template <class A, bool Blocks>
struct RowsMainloop {
  using Arguments = Fp8Scales;
  static constexpr int kTileK = 128;
  static constexpr bool kAKMajor = true, kBKMajor = true;

  template <class Shared, class Pipe>
  static __device__ __forceinline__ void run(const Shared& shared, Pipe& pipe, const Tile& tile, int group,
                                             const Params& params, const Fp8Scales& scales,
                                             float (&sum)[128]) {
    float acc[64];
#pragma unroll
    for (float& value : sum) value = 0;
    for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
      std::conditional_t<Blocks, StageScales, NoScales> of_stage(scales, params, tile, k);
      shared.full(pipe.stage).wait(pipe.parity);
      const uint64_t a_desc = sm90::smem_desc(shared.a(pipe.stage) + group * kPanelBytes);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        multiply_stage<A>(acc, a_desc, sm90::smem_desc(shared.b(pipe.stage) + part * kHalfN * 128));
        if (part == 1) shared.release(pipe.stage);
        if constexpr (Blocks) {
          const float across = of_stage.part[part];
          add_scaled(
              sum + part * 64, acc, [&](int h) { return of_stage.row[h]; },
              [&](int) { return make_float2(across, across); });
        } else {
          add(sum + part * 64, acc);
        }
      }
    }
    if constexpr (!Blocks) scale_sums(scales, tile, sum);
  }
};

// Weight gradients: as above, with scales of blocks that change from column to column.
template <class A, bool Blocks>
struct WgradMainloop {
  using Arguments = Fp8Scales;
  static constexpr int kTileK = 128;
  static constexpr bool kAKMajor = true, kBKMajor = true;

  // Zeroes the tail of a stage where K ends inside it: rows of the next expert follow. K is a multiple of 16,
  // the bytes that the swizzle moves together. All consumers call it.
  static __device__ __forceinline__ void clear_tail(uint32_t stage, int k_size) {
    for (int row = static_cast<int>(threadIdx.x) - 128; row < kTileM + kTileN; row += kConsumerThreads)
      for (int chunk = k_size / 16; chunk < kTileK / 16; ++chunk)
        asm volatile(
            "st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + row * 128 + (chunk ^ row % 8) * 16),
            "r"(0)
            : "memory");
    sm90::fence_proxy_async();
    sm90::named_barrier_sync<kConsumerThreads>(1);
  }

  template <class Shared, class Pipe>
  static __device__ __forceinline__ void run(const Shared& shared, Pipe& pipe, const Tile& tile, int group,
                                             const Params& params, const Fp8Scales& scales,
                                             float (&sum)[128]) {
    const int lane = threadIdx.x % 32,
              row0 = tile.row0 + (static_cast<int>(threadIdx.x) / 32 - 4) * 16 + lane / 4,
              column0 = tile.column0 + lane % 4 * 2;
    float acc[64];
#pragma unroll
    for (float& value : sum) value = 0;
    for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
      const int block = (tile.k0 + k) / kTileK;
      float of_row[2] = {};
      if constexpr (Blocks)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (const int row = row0 + 8 * h; row < tile.rows_end)
            of_row[h] = __ldg(scales.a + row * scales.a_side + block * scales.a_block);
      shared.full(pipe.stage).wait(pipe.parity);
      if (tile.k_size - k < kTileK) clear_tail(shared.a(pipe.stage), tile.k_size - k);
      const uint64_t a_desc = sm90::smem_desc(shared.a(pipe.stage) + group * kPanelBytes);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        multiply_stage<A>(acc, a_desc, sm90::smem_desc(shared.b(pipe.stage) + part * kHalfN * 128));
        if (part == 1) shared.release(pipe.stage);
        if constexpr (Blocks) {
          const int first = column0 + part * kHalfN;
          const float* of_column = scales.b + block * scales.b_block + first;
          add_scaled(
              sum + part * 64, acc, [&](int h) { return of_row[h]; },
              [&](int j) {
                return first + 8 * j < params.n ? __ldg(reinterpret_cast<const float2*>(of_column + 8 * j))
                                                : float2{};
              });
        } else {
          add(sum + part * 64, acc);
        }
      }
    }
    if constexpr (!Blocks) scale_sums(scales, tile, sum);
  }
};

// Calls run with the type of a and whether blocks have scales; b is e4m3 always.
template <class Run>
bool dispatch_scales(const Fp8Scales& scales, Run run) {
  if (scales.b_e5m2) return false;
  auto with = [&]<class A>(Type<A> type) {
    return scales.blocks ? run(type, std::true_type{}) : run(type, std::false_type{});
  };
  return scales.a_e5m2 ? with(Type<__nv_fp8_e5m2>{}) : with(Type<__nv_fp8_e4m3>{});
}

}  // namespace

template <class Out>
bool fp8_grouped_gemm(const KernelContext& ctx, const GroupedTask& task, const Fp8Scales& scales) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.b_row != 1 || task.k == 0) return false;
  return dispatch_scales(scales, [&]<class A, class Blocks>(Type<A>, Blocks) {
    return rows::launch<RowsMainloop<A, Blocks::value>, Out>(
        ctx, DType::F8E4M3, {task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows},
        {task.b, task.k, task.n, task.experts, task.b_column, task.b_expert}, params_of(task), scales);
  });
}

template <class Out>
bool fp8_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task, const Fp8Scales& scales) {
  if (!can_run(ctx, task) || task.a_row != 1 || task.b_row != 1) return false;
  if (std::is_same_v<Out, float> && task.beta != 0 && task.beta != 1) return false;
  if (scales.blocks && !(aligned(scales.b, 8) && scales.b_side == 1 && scales.b_block % 2 == 0)) return false;
  return dispatch_scales(scales, [&]<class A, class Blocks>(Type<A>, Blocks) {
    return wgrad::launch<WgradMainloop<A, Blocks::value>, Out>(
        ctx, DType::F8E4M3, {task.a, task.rows, task.k, 1, task.a_column, task.a_column * task.k},
        {task.b, task.rows, task.n, 1, task.b_column, task.b_column * task.n}, params_of(task), scales);
  });
}

template bool fp8_grouped_gemm<bfloat>(const KernelContext&, const GroupedTask&, const Fp8Scales&);
template bool fp8_grouped_gemm<half>(const KernelContext&, const GroupedTask&, const Fp8Scales&);
template bool fp8_grouped_gemm_weight<bfloat>(const KernelContext&, const GroupedTask&, const Fp8Scales&);
template bool fp8_grouped_gemm_weight<half>(const KernelContext&, const GroupedTask&, const Fp8Scales&);
template bool fp8_grouped_gemm_weight<float>(const KernelContext&, const GroupedTask&, const Fp8Scales&);

}  // namespace megatron::cuda
