#include "megatron/kernels/cuda/attention/attention_mma.cuh"
#include "megatron/kernels/cuda/gemm/grouped_gemm.cuh"

namespace megatron::cuda {
namespace {

constexpr int kSide = 128, kDepth = 32, kStages = 4, kBlockThreads = 128;

// One operand's part of a tile: kSide rows (or columns) of the GEMM by kDepth of the contraction, stored
// as it lies in memory: contraction innermost, or not.
template <class T, bool Inner>
struct Operand {
  T* data;
  static constexpr int kElements = kSide * kDepth;

  __device__ T* at(int outer, int chunk) const {
    if constexpr (Inner)
      return data + outer * kDepth + ((chunk ^ ((outer >> 1) & 3)) << 3);
    else
      return data + outer * kSide + ((chunk ^ (outer & 7)) << 3);
  }

  // `from` points at (side 0, contraction 0) of the tile; beyond `sides` and `depth` there are zeros.
  __device__ void fill(const T* from, int64_t stride, int64_t sides, int64_t depth) const {
    constexpr int chunks = (Inner ? kDepth : kSide) / 8, outers = Inner ? kSide : kDepth;
#pragma unroll
    for (int i = threadIdx.x; i < outers * chunks; i += kBlockThreads) {
      int outer = i / chunks, chunk = i % chunks;
      bool valid = Inner ? outer < sides && chunk * 8 < depth : outer < depth && chunk * 8 < sides;
      copy_async(at(outer, chunk), valid ? from + outer * stride + chunk * 8 : from, valid);
    }
  }

  __device__ void left(uint32_t (&a)[4], int side0, int step) const {
    int lane = threadIdx.x % 32, m = lane >> 3;
    if constexpr (Inner)
      load_matrices(a, at(side0 + (lane & 15), 2 * step + (lane >> 4)));
    else
      load_matrices_transposed(a, at(step * 16 + ((m >> 1) << 3) + (lane & 7), side0 / 8 + (m & 1)));
  }
  __device__ void right(uint32_t (&b)[4], int side0, int step) const {
    int lane = threadIdx.x % 32, m = lane >> 3;
    if constexpr (Inner)
      load_matrices(b, at(side0 + ((m >> 1) << 3) + (lane & 7), 2 * step + (m & 1)));
    else
      load_matrices_transposed(b, at(step * 16 + ((m & 1) << 3) + (lane & 7), side0 / 8 + (m >> 1)));
  }
};

// A matrix of which one tile is multiplied: where the tile begins, and how much of it exists.
template <class T>
struct Source {
  const T* data;
  int64_t stride, sides;
};

template <class Out>
__device__ __forceinline__ void write_pair(Out* to, float low, float high, float beta, bool pair) {
  if (beta != 0) {
    low += beta * widen(to[0]);
    if (pair) high += beta * widen(to[1]);
  }
  to[0] = narrow<Out>(low);
  if (pair) to[1] = narrow<Out>(high);
}

// c (rows × columns of a 128 × 128 tile) = beta · c + a · b over `depth`. Four warps, 64 × 64 each.
template <class T, class Out, bool AInner, bool BInner>
__device__ void tile_gemm(Source<T> a, Source<T> b, int64_t depth, Out* c, int64_t c_stride, float beta) {
  extern __shared__ __align__(128) char memory[];
  T* data = reinterpret_cast<T*>(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = warp / 2 * 64, column0 = warp % 2 * 64;
  using Left = Operand<T, AInner>;
  using Right = Operand<T, BInner>;
  constexpr int stage_elements = Left::kElements + Right::kElements;
  const int steps = static_cast<int>((depth + kDepth - 1) / kDepth);
  auto fetch = [&](int step) {
    if (step < steps) {
      T* to = data + step % kStages * stage_elements;
      int64_t k0 = static_cast<int64_t>(step) * kDepth;
      Left{to}.fill(a.data + k0 * (AInner ? 1 : a.stride), a.stride, a.sides, depth - k0);
      Right{to + Left::kElements}.fill(b.data + k0 * (BInner ? 1 : b.stride), b.stride, b.sides, depth - k0);
    }
    commit_copies();
  };
  float acc[4][8][4] = {};
  for (int s = 0; s < kStages - 1; ++s) fetch(s);
  for (int s = 0; s < steps; ++s) {
    wait_copies<kStages - 2>();
    __syncthreads();
    fetch(s + kStages - 1);
    const Left left{data + s % kStages * stage_elements};
    const Right right{left.data + Left::kElements};
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      uint32_t x[4][4], y[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) left.left(x[i], row0 + i * 16, step);
#pragma unroll
      for (int j = 0; j < 4; ++j) right.right(y[j], column0 + j * 16, step);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          mma<T>(acc[i][2 * j], x[i], y[j][0], y[j][1]);
          mma<T>(acc[i][2 * j + 1], x[i], y[j][2], y[j][3]);
        }
    }
  }
  wait_copies<0>();
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int row = row0 + i * 16 + lane / 4 + 8 * h, column = column0 + j * 8 + lane % 4 * 2;
        if (row < a.sides && column < b.sides)
          write_pair(c + row * c_stride + column, acc[i][j][2 * h], acc[i][j][2 * h + 1], beta,
                     column + 1 < b.sides);
      }
}

template <class T, bool BInner>
__global__ void __launch_bounds__(kBlockThreads) grouped_kernel(GroupedTask task) {
  const GroupedPlace place(task, kSide);
  const int64_t column0 = place.column0;
  RowTile tile = find_tile(task, place.tile, kSide);
  if (tile.expert < 0) return;
  const T* b = static_cast<const T*>(task.b) + tile.expert * task.b_expert + column0 * task.b_column;
  tile_gemm<T, T, true, BInner>(
      {static_cast<const T*>(task.a) + tile.begin * task.a_row, task.a_row, tile.end - tile.begin},
      {b, BInner ? task.b_column : task.b_row, task.n - column0}, task.k,
      static_cast<T*>(task.c) + tile.begin * task.c_row + column0, task.c_row, 0.f);
}

template <class T, class Out>
__global__ void __launch_bounds__(kBlockThreads) weight_kernel(GroupedTask task) {
  int64_t begin = task.offsets[blockIdx.z], count = task.offsets[blockIdx.z + 1] - begin;
  int64_t row0 = static_cast<int64_t>(blockIdx.y) * kSide, column0 = static_cast<int64_t>(blockIdx.x) * kSide;
  tile_gemm<T, Out, false, false>(
      {static_cast<const T*>(task.a) + begin * task.a_row + row0, task.a_row, task.k - row0},
      {static_cast<const T*>(task.b) + begin * task.b_row + column0, task.b_row, task.n - column0}, count,
      static_cast<Out*>(task.c) + blockIdx.z * task.c_expert + row0 * task.c_row + column0, task.c_row,
      static_cast<float>(task.beta));
}

template <class T>
constexpr size_t shared_bytes() {
  return sizeof(T) * kStages * 2 * kSide * kDepth;
}

}  // namespace

template <class T>
bool mma_grouped_gemm(cudaStream_t stream, const GroupedTask& task) {
  bool inner = task.b_row == 1 && task.b_column % 8 == 0, outer = task.b_column == 1 && task.b_row % 8 == 0;
  if (task.a_column != 1 || task.c_column != 1 || task.a_row % 8 || task.k % 8 || task.n % 8 ||
      !(inner || outer) || task.b_expert % 8 || !aligned(task.a) || !aligned(task.b))
    return false;
  auto launch = [&](auto kernel) {
    allow_shared_memory(kernel, shared_bytes<T>());
    kernel<<<grouped_blocks(task, kSide), kBlockThreads, shared_bytes<T>(), stream>>>(task);
  };
  if (inner)
    launch(grouped_kernel<T, true>);
  else
    launch(grouped_kernel<T, false>);
  return true;
}

template <class T, class Out>
bool mma_grouped_gemm_weight(cudaStream_t stream, const GroupedTask& task) {
  if (task.a_column != 1 || task.b_column != 1 || task.c_column != 1 || task.a_row % 8 || task.b_row % 8 ||
      task.k % 8 || task.n % 8 || !aligned(task.a) || !aligned(task.b))
    return false;
  dim3 grid(blocks_for(task.n, kSide), blocks_for(task.k, kSide), task.experts);
  allow_shared_memory(weight_kernel<T, Out>, shared_bytes<T>());
  weight_kernel<T, Out><<<grid, kBlockThreads, shared_bytes<T>(), stream>>>(task);
  return true;
}

template bool mma_grouped_gemm<bfloat>(cudaStream_t, const GroupedTask&);
template bool mma_grouped_gemm<half>(cudaStream_t, const GroupedTask&);
template bool mma_grouped_gemm_weight<bfloat, bfloat>(cudaStream_t, const GroupedTask&);
template bool mma_grouped_gemm_weight<bfloat, float>(cudaStream_t, const GroupedTask&);
template bool mma_grouped_gemm_weight<half, half>(cudaStream_t, const GroupedTask&);
template bool mma_grouped_gemm_weight<half, float>(cudaStream_t, const GroupedTask&);

}  // namespace megatron::cuda
