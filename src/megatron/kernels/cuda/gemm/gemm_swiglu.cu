#include "megatron/kernels/cuda/families.h"
#include "megatron/kernels/cuda/gemm/gemm_few_rows.h"
#include "megatron/kernels/cuda/gemm/gemm_skinny.h"
#include "megatron/kernels/cuda/gemm/gemm_sm90.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"

namespace megatron::cuda {
namespace {

// Forward: x = [gate | up] and y = silu(gate) · up. A tile has the same 128 columns of gate and of up. For
// each half of them one subtile stores x, and two make y in 32 columns each; the second stores it.
struct SwigluForward {
  static constexpr bool kBKMajor = true;
  static constexpr int kSubtiles = 6, kOutputN = kTileN / 2, kSwizzle = 8;
  struct Params {
    CUtensorMap x, y;
  };
  const Params& params;

  // b holds gate and up as two matrices: each block of the cluster loads one of them.
  static __device__ void load_b(uint32_t panels, const CUtensorMap& b, Barrier full, int column, int k,
                                int rank) {
    sm90::tma_multicast<kClusterSize>(panels + rank * (kBBytes / kClusterSize), b, full, k, column * kOutputN,
                                      rank);
  }

  __device__ void prefetch(const EpilogueContext&, const Tile&, int) const {}

  template <int P>
  __device__ void subtile(const EpilogueContext& context, const Tile& tile,
                          const uint32_t (&packed)[64]) const {
    constexpr int half = P / 3, part = P % 3;
    if constexpr (part < 2) {
      if (context.lane == 0) sm90::bulk_wait_read<0>();
      __syncwarp();
    }
    if constexpr (part == 0) {
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        sm90::stmatrix(context.matrices<128>(context.smem, c), packed + 2 * (8 * half + c));
        sm90::stmatrix(context.matrices<128>(context.smem + 2048, c), packed + 2 * (16 + 8 * half + c));
      }
    } else {
#pragma unroll
      for (int c = 4 * (part - 1); c < 4 * part; c += 2) {
        uint32_t active[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t gate = packed[2 * (8 * half + c) + i], up = packed[2 * (16 + 8 * half + c) + i];
          active[i] = narrow_pair<bfloat>(low(gate) * sigmoid<true>(low(gate)) * low(up),
                                          high(gate) * sigmoid<true>(high(gate)) * high(up));
        }
        sm90::stmatrix(context.matrices<128>(context.smem, c), active);
      }
    }
    if constexpr (part != 1) {
      sm90::fence_proxy_async();
      __syncwarp();
      if (context.lane == 0) {
        const int column = tile.column * kOutputN + half * 64, row = tile.row0 + context.row;
        if constexpr (part == 0) {
          sm90::tma_store(params.x, context.smem, column, row, 0, context.policy);
          sm90::tma_store(params.x, context.smem + 2048, column, row, 1, context.policy);
        } else {
          sm90::tma_store(params.y, context.smem, column, row, 0, context.policy);
        }
      }
      __syncwarp();
    }
  }
};

// Backward: the tile is dy. Each subtile loads 32 columns of gate and up, prefetched one subtile before, and
// stores their gradients from the same shared memory.
struct SwigluBackward {
  static constexpr bool kBKMajor = false;
  static constexpr int kSubtiles = 8, kOutputN = kTileN, kSwizzle = 8;
  struct Params {
    CUtensorMap x, dx;
  };
  const Params& params;

  static __device__ void load_b(uint32_t panels, const CUtensorMap& b, Barrier full, int column, int k,
                                int rank) {
    constexpr int each = kTileN / kPanel / kClusterSize;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int panel = rank * each + i;
      sm90::tma_multicast<kClusterSize>(panels + panel * kPanelBytes, b, full,
                                        column * kOutputN + panel * kPanel, k, 0);
    }
  }

  // Loads gate and up of subtile p by TMA, once the store from that buffer has read it.
  __device__ void prefetch(const EpilogueContext& context, const Tile& tile, int p) const {
    if (context.lane == 0) {
      sm90::bulk_wait_read<0>();
      const int column = tile.column * kOutputN + p * 32, row = tile.row0 + context.row;
      const uint32_t smem = context.smem + p % 2 * 2048;
      context.loaded[p % 2].arrive_expect_tx(2048);
      sm90::tma_load(smem, params.x, context.loaded[p % 2], column, row, 0, context.policy);
      sm90::tma_load(smem + 1024, params.x, context.loaded[p % 2], column, row, 1, context.policy);
    }
    __syncwarp();
  }

  template <int P>
  __device__ void subtile(const EpilogueContext& context, const Tile& tile,
                          const uint32_t (&packed)[64]) const {
    const uint32_t smem = context.smem + P % 2 * 2048;
    context.loaded[P % 2].wait(P / 2 % 2);
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
      const uint32_t at = context.matrices<64>(smem, c);
      uint32_t gate[4], up[4];
      sm90::ldmatrix(at, gate);
      sm90::ldmatrix(at + 1024, up);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t d = packed[2 * (4 * P + c) + i];
        float g[] = {low(gate[i]), high(gate[i])}, u[] = {low(up[i]), high(up[i])}, dy[] = {low(d), high(d)};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float s = sigmoid<true>(g[j]), value = g[j] * s, slope = s + value * (1.f - s);
          g[j] = dy[j] * u[j] * slope;
          u[j] = dy[j] * value;
        }
        gate[i] = narrow_pair<bfloat>(g[0], g[1]);
        up[i] = narrow_pair<bfloat>(u[0], u[1]);
      }
      sm90::stmatrix(at, gate);
      sm90::stmatrix(at + 1024, up);
    }
    sm90::fence_proxy_async();
    __syncwarp();
    if (context.lane == 0) {
      const int column = tile.column * kOutputN + P * 32, row = tile.row0 + context.row;
      sm90::tma_store(params.dx, smem, column, row, 0, context.policy);
      sm90::tma_store(params.dx, smem + 1024, column, row, 1, context.policy);
    }
    __syncwarp();
  }
};

// Gate and up as two matrices: halves of every row, or halves of the rows.
Matrices halves_of_rows(const Tensor& t) {
  return {t.raw(), t.size(1) / 2, t.size(0), 2, t.stride(0), t.size(1) / 2};
}
Matrices halves(const Tensor& t) {
  return {t.raw(), t.size(1), t.size(0) / 2, 2, t.stride(0), t.stride(0) * (t.size(0) / 2)};
}

bool gemm_swiglu(const KernelContext& ctx, const GemmSwigluArgs& args) {
  const bool some = args.a.size(0) > kFewerRows;
  if ((some && skinny_swiglu(ctx, args)) || few_rows_swiglu(ctx, args)) return true;
  // Blocks come in pairs along the rows: one of each pair would have nothing to do. In steps of a decoder,
  // where weights are all that is read, the library's GEMM is faster even with a kernel for the activation.
  if (ctx.pdl && args.a.size(0) <= kTileM) return false;
  CUtensorMap a, b;
  SwigluForward::Params params;
  if (!can_run(ctx, {args.a, args.b, args.x, args.y}) ||
      !make_tensor_map(DType::BF16, whole(args.a), 128, kTileM, a) ||
      !make_tensor_map(DType::BF16, halves(args.b), 128, kTileN / 2, b) ||
      !make_tensor_map(DType::BF16, halves_of_rows(args.x), 128, 16, params.x) ||
      !make_tensor_map(DType::BF16, whole(args.y), 128, 16, params.y))
    return false;
  launch<SwigluForward>(ctx, "gemm_swiglu", a, b, params, args.y.size(0), args.y.size(1), args.a.size(1));
  return true;
}

bool gemm_swiglu_backward(const KernelContext& ctx, const GemmSwigluBackwardArgs& args) {
  CUtensorMap a, b;
  SwigluBackward::Params params;
  if (!can_run(ctx, {args.a, args.b, args.x, args.dx}) ||
      !make_tensor_map(DType::BF16, whole(args.a), 128, kTileM, a) ||
      !make_tensor_map(DType::BF16, whole(args.b), 128, kPanel, b) ||
      !make_tensor_map(DType::BF16, halves_of_rows(args.x), 64, 16, params.x) ||
      !make_tensor_map(DType::BF16, halves_of_rows(args.dx), 64, 16, params.dx))
    return false;
  launch<SwigluBackward>(ctx, "gemm_swiglu_backward", a, b, params, args.x.size(0), args.b.size(1),
                         args.a.size(1));
  return true;
}

}  // namespace

void add_gemm_swiglu_kernels(KernelTable& table) {
  table.gemm_swiglu = gemm_swiglu;
  table.gemm_swiglu_backward = gemm_swiglu_backward;
}

}  // namespace megatron::cuda
