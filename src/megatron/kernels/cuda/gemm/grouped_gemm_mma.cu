#include "megatron/kernels/cuda/attention/attention_mma.cuh"
#include "megatron/kernels/cuda/gemm/grouped_gemm.cuh"

namespace megatron::cuda {
namespace {

constexpr int kTileMN = 128, kTileK = 32, kStages = 4, kBlockThreads = 128;

// A tile of one operand in shared memory: kTileMN rows of A (columns of B) by kTileK, K-major or not as in
// device memory.
template <class T, bool KMajor>
struct Operand {
  T* data;
  static constexpr int kElements = kTileMN * kTileK;

  __device__ T* at(int outer, int chunk) const {
    if constexpr (KMajor)
      return data + outer * kTileK + ((chunk ^ ((outer >> 1) & 3)) << 3);
    else
      return data + outer * kTileMN + ((chunk ^ (outer & 7)) << 3);
  }

  // cp.async from `from`, the tile's first element; beyond `sides` and `k_size` zeros.
  __device__ void fill(const T* from, int64_t stride, int64_t sides, int64_t k_size) const {
    constexpr int chunks = (KMajor ? kTileK : kTileMN) / 8, outers = KMajor ? kTileMN : kTileK;
#pragma unroll
    for (int i = threadIdx.x; i < outers * chunks; i += kBlockThreads) {
      int outer = i / chunks, chunk = i % chunks;
      bool valid = KMajor ? outer < sides && chunk * 8 < k_size : outer < k_size && chunk * 8 < sides;
      cp_async(at(outer, chunk), valid ? from + outer * stride + chunk * 8 : from, valid);
    }
  }

  __device__ void load_a(uint32_t (&a)[4], int side0, int step) const {
    int lane = threadIdx.x % 32, m = lane >> 3;
    if constexpr (KMajor)
      ldmatrix(a, at(side0 + (lane & 15), 2 * step + (lane >> 4)));
    else
      ldmatrix_trans(a, at(step * 16 + ((m >> 1) << 3) + (lane & 7), side0 / 8 + (m & 1)));
  }
  __device__ void load_b(uint32_t (&b)[4], int side0, int step) const {
    int lane = threadIdx.x % 32, m = lane >> 3;
    if constexpr (KMajor)
      ldmatrix(b, at(side0 + ((m >> 1) << 3) + (lane & 7), 2 * step + (m & 1)));
    else
      ldmatrix_trans(b, at(step * 16 + ((m & 1) << 3) + (lane & 7), side0 / 8 + (m >> 1)));
  }
};

// The first element of a tile in device memory, and how many rows of A (columns of B) exist from there on.
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

// c = beta · c + a · b of one 128 × 128 tile over k_size. Four warps run mma.sync m16n8k16 on 64 × 64 each;
// cp.async fills four stages.
template <class T, class Out, bool AKMajor, bool BKMajor>
__device__ void tile_gemm(Source<T> a, Source<T> b, int64_t k_size, Out* c, int64_t c_stride, float beta) {
  extern __shared__ __align__(128) char memory[];
  T* data = reinterpret_cast<T*>(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = warp / 2 * 64, column0 = warp % 2 * 64;
  using TileA = Operand<T, AKMajor>;
  using TileB = Operand<T, BKMajor>;
  constexpr int stage_elements = TileA::kElements + TileB::kElements;
  const int steps = static_cast<int>((k_size + kTileK - 1) / kTileK);
  auto fetch = [&](int step) {
    if (step < steps) {
      T* to = data + step % kStages * stage_elements;
      int64_t k0 = static_cast<int64_t>(step) * kTileK;
      TileA{to}.fill(a.data + k0 * (AKMajor ? 1 : a.stride), a.stride, a.sides, k_size - k0);
      TileB{to + TileA::kElements}.fill(b.data + k0 * (BKMajor ? 1 : b.stride), b.stride, b.sides,
                                        k_size - k0);
    }
    cp_async_commit();
  };
  float acc[4][8][4] = {};
  for (int s = 0; s < kStages - 1; ++s) fetch(s);
  for (int s = 0; s < steps; ++s) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    fetch(s + kStages - 1);
    const TileA a_tile{data + s % kStages * stage_elements};
    const TileB b_tile{a_tile.data + TileA::kElements};
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
      uint32_t x[4][4], y[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a_tile.load_a(x[i], row0 + i * 16, step);
#pragma unroll
      for (int j = 0; j < 4; ++j) b_tile.load_b(y[j], column0 + j * 16, step);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          mma<T>(acc[i][2 * j], x[i], y[j][0], y[j][1]);
          mma<T>(acc[i][2 * j + 1], x[i], y[j][2], y[j][3]);
        }
    }
  }
  cp_async_wait<0>();
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

template <class T, bool BKMajor>
__global__ void __launch_bounds__(kBlockThreads) grouped_kernel(GroupedTask task) {
  const GroupedPlace place(task, kTileMN);
  const int64_t column0 = place.column0;
  RowTile tile = find_tile(task, place.tile, kTileMN);
  if (tile.expert < 0) return;
  const T* b = static_cast<const T*>(task.b) + tile.expert * task.b_expert + column0 * task.b_column;
  tile_gemm<T, T, true, BKMajor>(
      {static_cast<const T*>(task.a) + tile.begin * task.a_row, task.a_row, tile.end - tile.begin},
      {b, BKMajor ? task.b_column : task.b_row, task.n - column0}, task.k,
      static_cast<T*>(task.c) + tile.begin * task.c_row + column0, task.c_row, 0.f);
}

template <class T, class Out>
__global__ void __launch_bounds__(kBlockThreads) weight_kernel(GroupedTask task) {
  int64_t begin = task.offsets[blockIdx.z], count = task.offsets[blockIdx.z + 1] - begin;
  int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTileMN,
          column0 = static_cast<int64_t>(blockIdx.x) * kTileMN;
  tile_gemm<T, Out, false, false>(
      {static_cast<const T*>(task.a) + begin * task.a_row + row0, task.a_row, task.k - row0},
      {static_cast<const T*>(task.b) + begin * task.b_row + column0, task.b_row, task.n - column0}, count,
      static_cast<Out*>(task.c) + blockIdx.z * task.c_expert + row0 * task.c_row + column0, task.c_row,
      static_cast<float>(task.beta));
}

template <class T>
constexpr size_t shared_bytes() {
  return sizeof(T) * kStages * 2 * kTileMN * kTileK;
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
    kernel<<<grouped_blocks(task, kTileMN), kBlockThreads, shared_bytes<T>(), stream>>>(task);
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
  dim3 grid(blocks_for(task.n, kTileMN), blocks_for(task.k, kTileMN), task.experts);
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
