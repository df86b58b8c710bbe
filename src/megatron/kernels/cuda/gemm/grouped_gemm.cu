#include "megatron/kernels/cuda/gemm/grouped_gemm_fp8.cuh"

namespace megatron::cuda {
namespace {

constexpr int kTileMN = 64, kTileK = 16, kMicro = 4;

// One 64 × 64 tile of c = a · b on SIMT units: 16 × 16 threads with 4 × 4 accumulators each. a(row, k) and
// b(k, column) read the operands and yield zero outside.
template <class C, class A, class B, class Store>
__device__ void tile_gemm(int64_t k_size, A a, B b, Store store) {
  __shared__ C smem_a[kTileK][kTileMN + 1], smem_b[kTileK][kTileMN + 1];
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  C acc[kMicro][kMicro] = {};
  for (int64_t k0 = 0; k0 < k_size; k0 += kTileK) {
    for (int i = threadIdx.x; i < kTileMN * kTileK; i += 256) {
      int row = i / kTileK, k = i % kTileK;
      smem_a[k][row] = a(row, k0 + k);
      smem_b[i / kTileMN][i % kTileMN] = b(k0 + i / kTileMN, i % kTileMN);
    }
    __syncthreads();
    for (int k = 0; k < kTileK; ++k)
#pragma unroll
      for (int i = 0; i < kMicro; ++i)
#pragma unroll
        for (int j = 0; j < kMicro; ++j) acc[i][j] += smem_a[k][ty + 16 * i] * smem_b[k][tx + 16 * j];
    __syncthreads();
  }
  for (int i = 0; i < kMicro; ++i)
    for (int j = 0; j < kMicro; ++j) store(ty + 16 * i, tx + 16 * j, acc[i][j]);
}

template <class T, class Out>
__global__ void __launch_bounds__(256) grouped_kernel(GroupedTask task) {
  using C = Compute<T>;
  const GroupedPlace place(task, kTileMN);
  const int64_t column0 = place.column0;
  RowTile tile = find_tile(task, place.tile, kTileMN);
  if (tile.expert < 0) return;
  const T* a = static_cast<const T*>(task.a);
  const T* b = static_cast<const T*>(task.b) + tile.expert * task.b_expert;
  Out* c = static_cast<Out*>(task.c);
  tile_gemm<C>(
      task.k,
      [&](int64_t row, int64_t k) {
        return tile.begin + row < tile.end && k < task.k
                   ? widen(a[(tile.begin + row) * task.a_row + k * task.a_column])
                   : C(0);
      },
      [&](int64_t k, int64_t column) {
        return k < task.k && column0 + column < task.n
                   ? widen(b[k * task.b_row + (column0 + column) * task.b_column])
                   : C(0);
      },
      [&](int64_t row, int64_t column, C value) {
        if (tile.begin + row < tile.end && column0 + column < task.n)
          c[(tile.begin + row) * task.c_row + (column0 + column) * task.c_column] =
              narrow<Out>(static_cast<Compute<Out>>(value));
      });
}

// c[e] = beta · c[e] + aᵀ · b over the expert's rows.
template <class T, class Out>
__global__ void __launch_bounds__(256) weight_kernel(GroupedTask task) {
  using C = Compute<T>;
  int64_t begin = task.offsets[blockIdx.z], count = task.offsets[blockIdx.z + 1] - begin;
  int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTileMN,
          column0 = static_cast<int64_t>(blockIdx.x) * kTileMN;
  const T* a = static_cast<const T*>(task.a) + begin * task.a_row;
  const T* b = static_cast<const T*>(task.b) + begin * task.b_row;
  Out* c = static_cast<Out*>(task.c) + blockIdx.z * task.c_expert;
  tile_gemm<C>(
      count,
      [&](int64_t row, int64_t k) {
        return k < count && row0 + row < task.k ? widen(a[k * task.a_row + (row0 + row) * task.a_column])
                                                : C(0);
      },
      [&](int64_t k, int64_t column) {
        return k < count && column0 + column < task.n
                   ? widen(b[k * task.b_row + (column0 + column) * task.b_column])
                   : C(0);
      },
      [&](int64_t row, int64_t column, C value) {
        if (row0 + row >= task.k || column0 + column >= task.n) return;
        Out& target = c[(row0 + row) * task.c_row + (column0 + column) * task.c_column];
        Compute<Out> old =
            task.beta == 0 ? Compute<Out>(0) : static_cast<Compute<Out>>(task.beta) * widen(target);
        target = narrow<Out>(old + static_cast<Compute<Out>>(value));
      });
}

__device__ __forceinline__ float fp8_value(const void* data, int64_t at, bool e5m2) {
  const auto bits = static_cast<const __nv_fp8_storage_t*>(data)[at];
  return __half2float(half(__nv_cvt_fp8_to_halfraw(bits, e5m2 ? __NV_E5M2 : __NV_E4M3)));
}

// fp8 operands that wgmma does not take, by SIMT units.
template <class Out>
__global__ void __launch_bounds__(256) fp8_kernel(GroupedTask task, Fp8Scales scales) {
  const GroupedPlace place(task, kTileMN);
  const int64_t column0 = place.column0;
  const RowTile tile = find_tile(task, place.tile, kTileMN);
  if (tile.expert < 0) return;
  Out* c = static_cast<Out*>(task.c);
  tile_gemm<float>(
      task.k,
      [&](int64_t row, int64_t k) {
        const int64_t at = tile.begin + row;
        if (at >= tile.end || k >= task.k) return 0.f;
        return fp8_value(task.a, at * task.a_row + k * task.a_column, scales.a_e5m2) *
               scales.a[scales.blocks ? at * scales.a_side + k / 128 * scales.a_block
                                      : tile.expert * scales.a_side];
      },
      [&](int64_t k, int64_t column) {
        const int64_t at = column0 + column;
        if (k >= task.k || at >= task.n) return 0.f;
        return fp8_value(task.b, tile.expert * task.b_expert + k * task.b_row + at * task.b_column,
                         scales.b_e5m2) *
               scales.b[scales.blocks ? tile.expert * scales.b_expert + at / 128 * scales.b_side +
                                            k / 128 * scales.b_block
                                      : tile.expert * scales.b_side];
      },
      [&](int64_t row, int64_t column, float value) {
        if (tile.begin + row < tile.end && column0 + column < task.n)
          c[(tile.begin + row) * task.c_row + (column0 + column) * task.c_column] =
              narrow<Out>(static_cast<Compute<Out>>(value));
      });
}

template <class Out>
__global__ void __launch_bounds__(256) fp8_weight_kernel(GroupedTask task, Fp8Scales scales) {
  const int64_t expert = blockIdx.z, begin = task.offsets[expert], end = task.offsets[expert + 1];
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTileMN,
                column0 = static_cast<int64_t>(blockIdx.x) * kTileMN;
  Out* c = static_cast<Out*>(task.c) + expert * task.c_expert;
  tile_gemm<float>(
      end - begin,
      [&](int64_t row, int64_t k) {
        const int64_t at = row0 + row, token = begin + k;
        if (token >= end || at >= task.k) return 0.f;
        return fp8_value(task.a, token * task.a_row + at * task.a_column, scales.a_e5m2) *
               scales.a[scales.blocks ? at * scales.a_side + token / 128 * scales.a_block
                                      : expert * scales.a_side];
      },
      [&](int64_t k, int64_t column) {
        const int64_t at = column0 + column, token = begin + k;
        if (token >= end || at >= task.n) return 0.f;
        return fp8_value(task.b, token * task.b_row + at * task.b_column, scales.b_e5m2) *
               scales.b[scales.blocks ? at * scales.b_side + token / 128 * scales.b_block
                                      : expert * scales.b_side];
      },
      [&](int64_t row, int64_t column, float value) {
        if (row0 + row >= task.k || column0 + column >= task.n) return;
        Out& target = c[(row0 + row) * task.c_row + (column0 + column) * task.c_column];
        const Compute<Out> old =
            task.beta == 0 ? Compute<Out>(0) : static_cast<Compute<Out>>(task.beta) * widen(target);
        target = narrow<Out>(old + static_cast<Compute<Out>>(value));
      });
}

// Strides of scales: see Fp8Scales.
Fp8Scales scales_of(const GroupedGemmArgs& args) {
  const Tensor &a = args.a_scale, &b = args.b_scale;
  const bool a_e5m2 = args.a.dtype() == DType::F8E5M2, b_e5m2 = args.b.dtype() == DType::F8E5M2;
  if (!args.blocks)
    return {a_e5m2, b_e5m2, false, pointer<float>(a), pointer<float>(b), a.stride(0), 0, b.stride(0), 0, 0};
  return {a_e5m2,      b_e5m2,      true,        pointer<float>(a), pointer<float>(b),
          a.stride(0), a.stride(1), b.stride(2), b.stride(1),       b.stride(0)};
}
Fp8Scales scales_of(const GroupedGemmWeightArgs& args) {
  const Tensor &a = args.a_scale, &b = args.b_scale;
  const auto along = [&](const Tensor& t) { return args.blocks ? t.stride(1) : 0; };
  return {args.a.dtype() == DType::F8E5M2,
          args.b.dtype() == DType::F8E5M2,
          args.blocks,
          pointer<float>(a),
          pointer<float>(b),
          a.stride(0),
          along(a),
          b.stride(0),
          along(b),
          0};
}

template <class T>
inline constexpr bool kTensorCores = std::is_same_v<T, bfloat> || std::is_same_v<T, half>;

// What forward and weight gradient have alike; the rest is zero.
template <class Args>
GroupedTask operands_of(const Args& args) {
  return {.a = args.a.raw(),
          .b = args.b.raw(),
          .c = args.c.raw(),
          .a_row = args.a.stride(0),
          .a_column = args.a.stride(1),
          .offsets = pointer<int32_t>(args.offsets),
          .rows = args.a.size(0)};
}

void grouped_gemm(const KernelContext& ctx, const GroupedGemmArgs& args) {
  if (args.c.numel() == 0) return;
  GroupedTask task = operands_of(args);
  task.b_expert = args.b.stride(0);
  task.b_row = args.b.stride(1);
  task.b_column = args.b.stride(2);
  task.c_row = args.c.stride(0);
  task.c_column = args.c.stride(1);
  task.experts = static_cast<int>(args.b.size(0));
  task.k = args.b.size(1);
  task.n = args.b.size(2);
  cudaStream_t stream = stream_of(ctx);
  if (is_fp8(args.a.dtype())) {
    const Fp8Scales scales = scales_of(args);
    dispatch_float("grouped_gemm", args.c.dtype(), [&]<class Out>(Type<Out>) {
      if constexpr (kTensorCores<Out>)
        if (fp8_grouped_gemm<Out>(ctx, task, scales)) return;
      fp8_kernel<Out><<<grouped_blocks(task, kTileMN), 256, 0, stream>>>(task, scales);
    });
    return check_launch("grouped_gemm");
  }
  dispatch_float("grouped_gemm", args.a.dtype(), [&]<class T>(Type<T>) {
    dispatch_float("grouped_gemm", args.c.dtype(), [&]<class Out>(Type<Out>) {
      if constexpr (kTensorCores<T> && std::is_same_v<T, Out>)
        if (wgmma_grouped_gemm<T>(ctx, task) || mma_grouped_gemm<T>(stream, task)) return;
      grouped_kernel<T, Out><<<grouped_blocks(task, kTileMN), 256, 0, stream>>>(task);
    });
  });
  check_launch("grouped_gemm");
}

void grouped_gemm_weight(const KernelContext& ctx, const GroupedGemmWeightArgs& args) {
  if (args.c.numel() == 0) return;
  GroupedTask task = operands_of(args);
  task.b_row = args.b.stride(0);
  task.b_column = args.b.stride(1);
  task.c_expert = args.c.stride(0);
  task.c_row = args.c.stride(1);
  task.c_column = args.c.stride(2);
  task.experts = static_cast<int>(args.c.size(0));
  task.k = args.c.size(1);
  task.n = args.c.size(2);
  task.beta = args.beta;
  cudaStream_t stream = stream_of(ctx);
  const dim3 grid(blocks_for(task.n, kTileMN), blocks_for(task.k, kTileMN), task.experts);
  if (is_fp8(args.a.dtype())) {
    const Fp8Scales scales = scales_of(args);
    dispatch_float("grouped_gemm_weight", args.c.dtype(), [&]<class Out>(Type<Out>) {
      if constexpr (kTensorCores<Out> || std::is_same_v<Out, float>)
        if (fp8_grouped_gemm_weight<Out>(ctx, task, scales)) return;
      fp8_weight_kernel<Out><<<grid, 256, 0, stream>>>(task, scales);
    });
    return check_launch("grouped_gemm_weight");
  }
  dispatch_float("grouped_gemm_weight", args.a.dtype(), [&]<class T>(Type<T>) {
    dispatch_float("grouped_gemm_weight", args.c.dtype(), [&]<class Out>(Type<Out>) {
      if constexpr (kTensorCores<T> && (std::is_same_v<T, Out> || std::is_same_v<Out, float>))
        if (wgmma_grouped_gemm_weight<T, Out>(ctx, task) || mma_grouped_gemm_weight<T, Out>(stream, task))
          return;
      weight_kernel<T, Out><<<grid, 256, 0, stream>>>(task);
    });
  });
  check_launch("grouped_gemm_weight");
}

}  // namespace

void add_grouped_gemm_kernels(KernelTable& table) {
  table.grouped_gemm = grouped_gemm;
  table.grouped_gemm_weight = grouped_gemm_weight;
}

}  // namespace megatron::cuda
