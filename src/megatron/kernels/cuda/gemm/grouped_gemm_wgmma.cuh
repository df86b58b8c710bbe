#pragma once

#include "megatron/kernels/cuda/core/sm90.cuh"
#include "megatron/kernels/cuda/core/tensor_map.h"
#include "megatron/kernels/cuda/gemm/grouped_gemm.cuh"

// What the persistent sm_90a grouped GEMMs of all number formats share: tiles of 128 × 256 of the output,
// their order, shared memory, and the way of sums to the output.
namespace megatron::cuda::grouped {

using sm90::Barrier;
using sm90::kPanel;
using sm90::kPanelBytes;

inline constexpr int kTileM = 128, kTileN = 256;
inline constexpr int kConsumerThreads = 256, kBlockThreads = 128 + kConsumerThreads;
inline constexpr int kABytes = kTileM / kPanel * kPanelBytes, kBBytes = kTileN / kPanel * kPanelBytes,
                     kStageBytes = kABytes + kBBytes;

// Offsets in shared memory. A 16-bit output lies there as the whole tile; the 16 bytes behind each row keep
// eight rows on different banks. A fp32 output would take two stages: each warpgroup has two buffers of 64 ×
// 32 in turn.
template <class Out>
struct Layout {
  static constexpr bool kWide = std::is_same_v<Out, float>;
  static constexpr int kStages = kWide ? 4 : 3;
  static constexpr int kRowBytes = kTileN * 2 + 16;
  static constexpr int kStoreN = 32, kStoreBuffers = 2, kStoreBytes = kPanel * kStoreN * 4;
  static constexpr int kOutput = kStages * kStageBytes,
                       kBarriers = kOutput + (kWide ? 2 * kStoreBuffers * kStoreBytes : kTileM * kRowBytes),
                       kBytes = kBarriers + 8 * (2 * kStages + kConsumerThreads / 32);
};

struct Params {
  void* c;
  int64_t c_expert, c_row;
  const int32_t* offsets;
  int experts, m, n, k;  // of one expert; the size that offsets cut is unused
  float beta;            // for fp32: 0 or 1
};

struct Tile {
  int expert, row0, rows_end, column0, k0, k_size;
};

// Yields the tiles of one block: down kSwizzle tiles, then along N, so that running blocks share operands in
// the L2 cache. Tokens are rows of c, or with RaggedK the K dimension.
template <bool RaggedK>
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const Params& params)
      : params_(params), next_(static_cast<int>(blockIdx.x)) {}

  __device__ bool next(Tile& tile) {
    constexpr int kSwizzle = 2048 / kTileM;
    const int tiles_n = (params_.n + kTileN - 1) / kTileN;
    int begin, end, tiles_m;
    for (;; ++expert_) {
      if (expert_ == params_.experts) return false;
      begin = params_.offsets[expert_];
      end = params_.offsets[expert_ + 1];
      tiles_m = ((RaggedK ? params_.m : end - begin) + kTileM - 1) / kTileM;
      if (next_ < tiles_m * tiles_n) break;
      next_ -= tiles_m * tiles_n;
    }
    const int group = next_ / (kSwizzle * tiles_n), rest = next_ - group * kSwizzle * tiles_n,
              height = min(kSwizzle, tiles_m - group * kSwizzle),
              row = (group * kSwizzle + rest % height) * kTileM;
    tile.expert = expert_;
    tile.row0 = RaggedK ? row : begin + row;
    tile.rows_end = RaggedK ? params_.m : end;
    tile.column0 = rest / height * kTileN;
    tile.k0 = RaggedK ? begin : 0;
    tile.k_size = RaggedK ? end - begin : params_.k;
    next_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  const Params& params_;
  int next_, expert_ = 0;  // counted from the first tile of the expert
};

// Loads Sides × 128 bytes of an operand by TMA.
template <int Sides, bool KMajor>
__device__ __forceinline__ void load_operand(uint32_t to, const CUtensorMap& map, Barrier full, int side,
                                             int k, int expert) {
  constexpr int kBox = KMajor ? Sides : kPanel;
#pragma unroll
  for (int s = 0; s < Sides; s += kBox)
    sm90::tma_load(to + s / kPanel * kPanelBytes, map, full, KMajor ? k : side + s, KMajor ? side + s : k,
                   expert);
}

// The 16 rows of a tile that belong to one consumer warp: where they lie in c and in the output buffer.
template <class Out>
struct WarpRows {
  static constexpr int kRowBytes = Layout<Out>::kRowBytes;
  Out* c;           // the row of this lane
  uint32_t buffer;  // the first row
  int rows, bytes;  // that there are, and of each

  __device__ WarpRows(const Params& params, const Tile& tile, uint32_t output) {
    const int first = (static_cast<int>(threadIdx.x) / 32 - 4) * 16, lane = threadIdx.x % 32;
    c = static_cast<Out*>(params.c) + tile.expert * params.c_expert +
        (tile.row0 + first + lane) * params.c_row + tile.column0;
    buffer = output + first * kRowBytes;
    rows = max(0, min(16, tile.rows_end - tile.row0 - first));
    bytes = min(kTileN, params.n - tile.column0) * 2;
  }
  // The place of accumulators 4 j + 2 h and the next.
  __device__ uint32_t place(int j, int h) const {
    const int lane = threadIdx.x % 32;
    return buffer + (lane / 4 + 8 * h) * kRowBytes + (8 * j + lane % 4 * 2) * 2;
  }
};

// Asks for the old values of a warp's rows as soon as the last tile has left the buffer.
template <class Out>
__device__ __forceinline__ void load_old_rows(const WarpRows<Out>& to, Barrier old) {
  const int lane = threadIdx.x % 32;
  sm90::bulk_wait_read<0>();
  __syncwarp();
  if (lane == 0) old.arrive_expect_tx(to.rows * to.bytes);
  __syncwarp();
  if (lane < to.rows) sm90::bulk_load(to.buffer + lane * to.kRowBytes, to.c, to.bytes, old);
}

// acc += beta · c from the buffer. TMA could add in the dtype of c alone, which would round 16-bit sums
// twice.
template <class Out>
__device__ __forceinline__ void add_old_rows(const WarpRows<Out>& from, float beta, float (&acc)[128]) {
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Vec<Out, 2> old;
      asm volatile("ld.shared.b32 %0, [%1];"
                   : "=r"(reinterpret_cast<uint32_t&>(old))
                   : "r"(from.place(j, h))
                   : "memory");
#pragma unroll
      for (int side = 0; side < 2; ++side)
        acc[4 * j + 2 * h + side] = fmaf(beta, widen(old.v[side]), acc[4 * j + 2 * h + side]);
    }
}

// c = acc: each warp packs its 16 rows in shared memory and stores them by bulk copies.
template <class Out>
__device__ __forceinline__ void store_rows(const WarpRows<Out>& to, const float (&acc)[128]) {
  const int lane = threadIdx.x % 32;
  sm90::bulk_wait_read<0>();
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to.place(j, h)),
                   "r"(narrow_pair<Out>(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]))
                   : "memory");
  sm90::fence_proxy_async();
  __syncwarp();
  if (lane < to.rows) sm90::bulk_store(to.c, to.buffer + lane * to.kRowBytes, to.bytes);
}

// c = acc or, with beta 1, c += acc: a warpgroup stores its 64 rows by TMA, 64 × 32 at a time.
__device__ __forceinline__ void store_tile_fp32(const Params& params, const CUtensorMap& c, const Tile& tile,
                                                const float (&acc)[128], uint32_t boxes, int panel) {
  using Shared = Layout<float>;
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const bool speaker = threadIdx.x % 128 == 0;
#pragma unroll
  for (int b = 0; b < kTileN / Shared::kStoreN; ++b) {
    const uint32_t box =
        boxes + (panel * Shared::kStoreBuffers + b % Shared::kStoreBuffers) * Shared::kStoreBytes;
    if (speaker) sm90::bulk_wait_read<Shared::kStoreBuffers - 1>();
    sm90::named_barrier_sync<128>(2 + panel);
#pragma unroll
    for (int j = 0; j < Shared::kStoreN / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * h, chunk = (2 * j + quad / 2) ^ row % 8,
                  sum = b * Shared::kStoreN / 2 + 4 * j + 2 * h;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(box + row * 128 + chunk * 16 + quad % 2 * 8),
                     "f"(acc[sum]), "f"(acc[sum + 1])
                     : "memory");
      }
    sm90::fence_proxy_async();
    sm90::named_barrier_sync<128>(2 + panel);
    if (speaker) {
      const int x = tile.column0 + b * Shared::kStoreN, y = tile.row0 + panel * kPanel;
      if (params.beta != 0)
        sm90::tma_reduce_add(c, box, x, y, tile.expert);
      else
        sm90::tma_store(c, box, x, y, tile.expert);
    }
  }
}

// Code for sm_90a runs on GPUs of compute capability 9.0 alone.
inline bool can_run(const KernelContext& ctx, const GroupedTask& task) {
#ifdef MEGATRON_SM90A
  constexpr int64_t kMax = 1 << 30;
  return runtime_of(ctx).properties().compute_capability == 90 && task.rows > 0 && task.rows < kMax &&
         task.k < kMax && task.n < kMax && task.n % 8 == 0 && task.c_column == 1 && task.c_row % 8 == 0 &&
         task.c_expert % 8 == 0 && aligned(task.c);
#else
  return false;
#endif
}

inline Params params_of(const GroupedTask& task) {
  return {task.c,
          task.c_expert,
          task.c_row,
          task.offsets,
          task.experts,
          static_cast<int>(task.k),
          static_cast<int>(task.n),
          static_cast<int>(task.k),
          static_cast<float>(task.beta)};
}

}  // namespace megatron::cuda::grouped
