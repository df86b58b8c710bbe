#pragma once

#include "megatron/kernels/cuda/core/shared_memory.cuh"

// Tiles, fragments and warp-level GEMMs by mma.sync m16n8k16. A fragment of 16 rows lies over a warp: a lane
// holds rows lane / 4 and lane / 4 + 8, and of each group of eight columns the pair 2 · (lane % 4).
namespace megatron::cuda {

inline constexpr int kMmaWarps = 4, kMmaThreads = kMmaWarps * 32, kMmaRows = kMmaWarps * 16;
inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.69314718055994531f;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, bfloat>) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&both);
  } else {
    __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&both);
  }
}

__device__ __forceinline__ float2 unpack(uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}

// Two fp32 numbers as the sum of two bf16x2, high and low.
__device__ __forceinline__ void split(float first, float second, uint32_t& high, uint32_t& low) {
  high = narrow_pair<bfloat>(first, second);
  float2 rounded = unpack(high);
  low = narrow_pair<bfloat>(first - rounded.x, second - rounded.y);
}
__device__ __forceinline__ void split(const float4& first, const float4& second, uint4& high, uint4& low) {
  split(first.x, first.y, high.x, low.x);
  split(first.z, first.w, high.y, low.y);
  split(second.x, second.y, high.z, low.z);
  split(second.z, second.w, high.w, low.w);
}

template <int N>
__device__ __forceinline__ void clear(float (&acc)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[i][j] = 0;
}

// c += a · b
template <class T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, bfloat>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const void* data) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(data)));
}
__device__ __forceinline__ void ldmatrix_trans(uint32_t (&r)[4], const void* data) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(data)));
}

// A tile of R rows and D columns in shared memory. Chunks of eight columns are XOR-swizzled within a row, so
// that eight rows of one chunk lie in different banks.
template <class T, int R, int D>
struct MmaTile {
  T* data;
  static constexpr int kElements = R * D;

  __device__ T* at(int row, int chunk) const { return data + row * D + ((chunk ^ (row & 7)) << 3); }

  // cp.async of rows first, first + stride, …: `count` of them, the others become zero.
  template <int Threads = kMmaThreads>
  __device__ void fill_rows(const T* first, int64_t stride, int count) const {
    constexpr int chunks = D / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < R * chunks; i += Threads) {
      int row = i / chunks, chunk = i % chunks;
      cp_async(at(row, chunk), row < count ? first + row * stride + chunk * 8 : first, row < count);
    }
  }

  // A fragment: 16 rows from row0, columns 16 step to 16 step + 15.
  __device__ void load_a(uint32_t (&a)[4], int row0, int step) const {
    int lane = threadIdx.x % 32;
    ldmatrix(a, at(row0 + (lane & 15), 2 * step + (lane >> 4)));
  }
  // B fragments of two groups of eight rows from row0, which are columns of B; K runs along the tile's
  // columns.
  __device__ void load_b(uint32_t (&b)[4], int row0, int step) const {
    int lane = threadIdx.x % 32, m = lane >> 3;
    ldmatrix(b, at(row0 + ((m >> 1) << 3) + (lane & 7), 2 * step + (m & 1)));
  }
  // B fragments where K runs over the 16 rows from row0: two chunks of columns.
  __device__ void load_b_trans(uint32_t (&b)[4], int row0, int chunk) const {
    int lane = threadIdx.x % 32, m = lane >> 3;
    ldmatrix_trans(b, at(row0 + ((m & 1) << 3) + (lane & 7), chunk + (m >> 1)));
  }
  // A fragment where K runs over the 16 rows from row0: two chunks of columns from `chunk` are rows of A.
  __device__ void load_a_trans(uint32_t (&a)[4], int row0, int chunk) const {
    int lane = threadIdx.x % 32, m = lane >> 3;
    ldmatrix_trans(a, at(row0 + ((m >> 1) << 3) + (lane & 7), chunk + (m & 1)));
  }
};

// acc (16 × N) += A · Bᵀ, for 16 rows of A from row0 and N rows of B, over D columns.
template <class T, int D, int N, class A, class B>
__device__ __forceinline__ void warp_gemm_nt_add(float (&acc)[N / 8][4], const A& a_tile, int row0,
                                                 const B& b_tile) {
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    uint32_t a[4];
    a_tile.load_a(a, row0, step);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      uint32_t b[4];
      b_tile.load_b(b, n * 16, step);
      mma<T>(acc[2 * n], a, b[0], b[1]);
      mma<T>(acc[2 * n + 1], a, b[2], b[3]);
    }
  }
}

template <class T, int D, int N, class A, class B>
__device__ __forceinline__ void warp_gemm_nt(float (&acc)[N / 8][4], const A& a_tile, int row0,
                                             const B& b_tile) {
  clear(acc);
  warp_gemm_nt_add<T, D, N>(acc, a_tile, row0, b_tile);
}

// acc (16 × D) += weights · B, for weights (16 × N) as warp_gemm_nt leaves them and N rows of B.
template <class T, int D, int N, class B>
__device__ __forceinline__ void warp_gemm_nn_add(float (&acc)[D / 8][4], const float (&weights)[N / 8][4],
                                                 const B& b_tile) {
#pragma unroll
  for (int step = 0; step < N / 16; ++step) {
    uint32_t a[4] = {pack<T>(weights[2 * step][0], weights[2 * step][1]),
                     pack<T>(weights[2 * step][2], weights[2 * step][3]),
                     pack<T>(weights[2 * step + 1][0], weights[2 * step + 1][1]),
                     pack<T>(weights[2 * step + 1][2], weights[2 * step + 1][3])};
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      uint32_t b[4];
      b_tile.load_b_trans(b, step * 16, 2 * n);
      mma<T>(acc[2 * n], a, b[0], b[1]);
      mma<T>(acc[2 * n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace megatron::cuda
