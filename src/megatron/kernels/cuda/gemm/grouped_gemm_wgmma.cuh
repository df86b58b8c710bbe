#pragma once

#include "megatron/kernels/cuda/core/sm90.cuh"
#include "megatron/kernels/cuda/core/tensor_map.h"
#include "megatron/kernels/cuda/gemm/grouped_gemm.cuh"

// What the persistent sm_90a grouped GEMMs of all number formats share: tiles of 128 × 256 of the output,
// their order and the loads of operands. The kernels: grouped_gemm_rows.cuh (forward, input gradients) and
// grouped_gemm_wgrad.cuh (weight gradients). Number formats are the Mainloops of the .cu files: Arguments (of
// the kernel), kTileK, kAKMajor and kBKMajor (the order of operands), and run(), which leaves the sums of a
// consumer warpgroup's 64 × 256.
namespace megatron::cuda::grouped {

using sm90::Barrier;
using sm90::kPanel;
using sm90::kPanelBytes;

inline constexpr int kTileM = 128, kTileN = 256;
inline constexpr int kConsumerThreads = 256, kBlockThreads = 128 + kConsumerThreads;
inline constexpr int kABytes = kTileM / kPanel * kPanelBytes, kBBytes = kTileN / kPanel * kPanelBytes,
                     kStageBytes = kABytes + kBBytes;

struct Params {
  void* c;
  int64_t c_expert, c_row;
  const int32_t* offsets;
  int experts, m, n, k;  // of one expert; the size that offsets cut is unused
  float beta;            // of weight gradients; for fp32: 0 or 1
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
