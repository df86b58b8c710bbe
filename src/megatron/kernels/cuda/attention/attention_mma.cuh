#pragma once

#include "megatron/kernels/cuda/attention/attention.cuh"
#include "megatron/kernels/cuda/core/mma.cuh"

// Tiles of heads and dropout masks for the attention kernels on tensor cores.
namespace megatron::cuda {

template <class T, int R, int D>
struct SharedTile : MmaTile<T, R, D> {
  // cp.async of `count` rows of a head, of which token(i) names the places; rows beyond, and elements beyond
  // head_dim, become zero.
  template <class Token>
  __device__ void fill_from(const HeadTensor<T>& x, int head, int count, int head_dim, Token token) const {
    constexpr int chunks = D / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < R * chunks; i += kMmaThreads) {
      int row = i / chunks, chunk = i % chunks;
      bool valid = row < count && chunk * 8 < head_dim;
      cp_async(this->at(row, chunk), valid ? x.row(token(row), head) + chunk * 8 : x.data, valid);
    }
  }
  // The same from rows of e4m3, whose values are rounded to T; done when it returns.
  template <class Token>
  __device__ void widen_from(const Fp8Heads& x, int head, int count, int head_dim, Token token) const {
    constexpr int chunks = D / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < R * chunks; i += kMmaThreads) {
      const int row = i / chunks, chunk = i % chunks;
      uint4 wide{};
      if (row < count && chunk * 8 < head_dim) {
        const int64_t at = token(row);
        const uint2 bytes = *reinterpret_cast<const uint2*>(x.row(at, head) + chunk * 8);
        const float scale = *x.scale(at, head);
        const float2 a = widen_e4m3(bytes.x), b = widen_e4m3(bytes.x >> 16), c = widen_e4m3(bytes.y),
                     d = widen_e4m3(bytes.y >> 16);
        wide = {pack<T>(a.x * scale, a.y * scale), pack<T>(b.x * scale, b.y * scale),
                pack<T>(c.x * scale, c.y * scale), pack<T>(d.x * scale, d.y * scale)};
      }
      *reinterpret_cast<uint4*>(this->at(row, chunk)) = wide;
    }
  }
  // Rows first … first + count − 1.
  __device__ void fill(const HeadTensor<T>& x, int64_t first, int head, int count, int head_dim) const {
    fill_from(x, head, count, head_dim, [&](int row) { return first + row; });
  }
};

// The dropout mask of a tile, a bit for each probability. All threads of a block fill it together, so that
// no random word is drawn twice.
template <int Queries, int Keys>
struct KeptTile {
  static constexpr int kMaskWords = Keys / 32;  // words of 32 bits a query
  uint32_t* mask;

  template <class T>
  __device__ void fill(const AttentionTask<T>& task, const RngKey& random, const AttentionOrigin& origin,
                       int head, int query0, int key0) const {
    for (int i = threadIdx.x; i < Queries * kMaskWords; i += kMmaThreads)
      mask[i] = task.kept(random, origin, head, query0 + i / kMaskWords, key0 + i % kMaskWords * 32);
  }
  __device__ bool holds(int query, int key) const {
    return mask[query * kMaskWords + key / 32] >> (key % 32) & 1;
  }
};

// Writes one of a lane's two rows (half 0 or 1), times factor.
template <class T, int D>
__device__ __forceinline__ void write_half(T* row, const float (&acc)[D / 8][4], int half_row, float factor,
                                           int head_dim) {
  int pair = (threadIdx.x % 4) * 2;
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
    if (n * 8 < head_dim)
      *reinterpret_cast<uint32_t*>(row + n * 8 + pair) =
          pack<T>(acc[n][2 * half_row] * factor, acc[n][2 * half_row + 1] * factor);
}

template <class T>
bool fits_tensor_cores(const AttentionTask<T>& task) {
  return task.d % 8 == 0 && task.dv % 8 == 0 && task.q.vectors(8) && task.k.vectors(8) && task.v.vectors(8) &&
         task.fp8_k.vectors(8) && task.fp8_v.vectors(8) && task.o.vectors(8);
}

}  // namespace megatron::cuda
