#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

// GEMM of a block on SIMT units, in fp32 or fp64, with operands computed as they are read. For small
// matrices of scans where precision counts.
namespace megatron::cuda {

inline constexpr int kSimtTileMN = 64, kSimtTileK = 16, kSimtThreads = 256;

template <class C>
struct SimtSmem {
  C a[kSimtTileK][kSimtTileMN + 1], b[kSimtTileK][kSimtTileMN + 1];
};

// A 64 × 64 accumulator tile, 4 × 4 elements in each of 256 threads.
template <class C>
struct SimtTile {
  C sum[4][4] = {};

  static __device__ int row(int i) { return threadIdx.x / 16 + 16 * i; }
  static __device__ int column(int j) { return threadIdx.x % 16 + 16 * j; }

  // += Σ_k a(row, k) · b(k, column) over k in [begin, end). With AlongK neighbouring threads read
  // neighbouring k, else neighbouring rows or columns. The functions give zeros outside of the matrices.
  template <bool AAlongK, bool BAlongK, class A, class B>
  __device__ void add(SimtSmem<C>& memory, int begin, int end, A a, B b) {
    for (int k0 = begin; k0 < end; k0 += kSimtTileK) {
      __syncthreads();
      for (int e = threadIdx.x; e < kSimtTileMN * kSimtTileK; e += kSimtThreads) {
        int k = AAlongK ? e % kSimtTileK : e / kSimtTileMN, m = AAlongK ? e / kSimtTileK : e % kSimtTileMN;
        memory.a[k][m] = k0 + k < end ? a(m, k0 + k) : C(0);
        k = BAlongK ? e % kSimtTileK : e / kSimtTileMN, m = BAlongK ? e / kSimtTileK : e % kSimtTileMN;
        memory.b[k][m] = k0 + k < end ? b(k0 + k, m) : C(0);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kSimtTileK; ++k) {
        C x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = memory.a[k][row(i)], y[i] = memory.b[k][column(i)];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i][j] += x[i] * y[j];
      }
    }
  }

  // Writes the tile at (row0, column0) of a dense rows × columns matrix.
  __device__ void write(C* out, int row0, int rows, int column0, int columns) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (int m = row0 + row(i), n = column0 + column(j); m < rows && n < columns)
          out[m * columns + n] = sum[i][j];
  }
};

// Sum over the 16 threads that hold a row; all of them get it.
template <class C>
__device__ C row_sum(C value) {
#pragma unroll
  for (int offset = 8; offset; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

inline int64_t tiles(int64_t n) { return (n + kSimtTileMN - 1) / kSimtTileMN; }

}  // namespace megatron::cuda
