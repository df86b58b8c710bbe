#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

namespace megatron::cuda {

// Arguments of both grouped GEMMs. `offsets`, read on the device alone, cuts the token rows of `a` (and of
// `b` for the weight gradient). The grid has the maximum number of tiles; blocks without a tile return.
struct GroupedTask {
  const void *a, *b;
  void* c;
  int64_t a_row, a_column, b_expert, b_row, b_column, c_expert, c_row, c_column;  // strides; rows of b are k
  const int32_t* offsets;
  int experts;
  int64_t rows, k, n;  // of the whole of a; of one expert's matrix
  double beta;
};

// The rows of one tile of a grouped GEMM.
struct RowTile {
  int expert;  // −1: no tile is left
  int64_t begin, end;
};

__device__ inline RowTile find_tile(const GroupedTask& task, int64_t tile, int height) {
  for (int e = 0; e < task.experts; ++e) {
    int64_t begin = task.offsets[e], end = task.offsets[e + 1], tiles = (end - begin + height - 1) / height;
    if (tile < tiles) return {e, begin + tile * height, min(end, begin + (tile + 1) * height)};
    tile -= tiles;
  }
  return {-1, 0, 0};
}

// Blocks for the maximum number of side × side tiles, in one grid dimension: the second takes too few.
inline unsigned grouped_blocks(const GroupedTask& task, int side) {
  return blocks_for(task.n, side) * static_cast<unsigned>(task.rows / side + task.experts);
}

// The tile of this block.
struct GroupedPlace {
  int64_t tile, column0;
  __device__ GroupedPlace(const GroupedTask& task, int side) {
    const auto across = static_cast<unsigned>((task.n + side - 1) / side);
    tile = blockIdx.x / across;
    column0 = int64_t{blockIdx.x % across} * side;
  }
};

// bf16 and fp16 on tensor cores: wgmma on sm_90a, mma.sync since sm_80. False, and nothing done, where GPU,
// strides or alignment do not fit.
template <class T>
bool wgmma_grouped_gemm(const KernelContext& ctx, const GroupedTask& task);
template <class T, class Out>
bool wgmma_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task);
template <class T>
bool mma_grouped_gemm(cudaStream_t stream, const GroupedTask& task);
template <class T, class Out>
bool mma_grouped_gemm_weight(cudaStream_t stream, const GroupedTask& task);

}  // namespace megatron::cuda
