#pragma once

#include <limits>

#include "megatron/kernels/cuda/core/mma.cuh"

// Attention of one query a sequence to tiles of 16 keys, by mma.sync m16n8k16: Sᵀ = k · qᵀ of the keys and up
// to eight query heads of one KV head, and oᵀ += vᵀ · Pᵀ. K and V go from memory to registers: a lane has 16
// bytes of a row of either, which are eight neighbours in D. Fragments of mma.sync ask for others, but D is
// permuted for q and K alike, and the rows of oᵀ are for V.
namespace megatron::cuda {

inline constexpr int kTileKeys = 16, kTileHeads = 8;
inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Scores are kept times log2(e), for exp2. A maximum of −∞ stands for no key.
__device__ __forceinline__ float weight_of(float score, float maximum) {
  return exp2_fast(score - (maximum == kLowest ? 0.f : maximum));
}

// 16 bytes of device memory that is read once, or zeros. Predicated, so that no branch stands between loads.
__device__ __forceinline__ uint4 read_once(bool valid, const void* from) {
  uint4 v{};
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %5, 0;"
      "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(valid)));
  return v;
}

// Transposes an 8 × 8 matrix of 16-bit elements, of which lane t has elements t % 4 · 2 and the next of row
// t / 4.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// One lane's part of a tile. Of keys it has rows lane / 4 and 8 further, of values the pairs of rows
// lane % 4 · 2 and 8 further.
template <class T, int D>
struct DecodeTile {
  static constexpr int kChunks = D / 32, kHalves = D / 64;
  uint4 k[2][kChunks], v[4][kHalves];

  __device__ static int key_row(int n) { return threadIdx.x % 32 / 4 + 8 * n; }
  __device__ static int value_row(int i) { return threadIdx.x % 4 * 2 + i % 2 + 8 * (i / 2); }
  // Where the lane's bytes begin in a row.
  __device__ static int key_channel(int chunk) { return chunk * 32 + threadIdx.x % 4 * 8; }
  __device__ static int value_channel(int half) { return half * 64 + threadIdx.x % 32 / 4 * 8; }

  // q · k of heads lane % 4 · 2 and the next (i % 2) with keys lane / 4 and 8 further (i / 2).
  __device__ void dots(float (&dot)[4], const uint4 (&q)[kChunks]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) dot[i] = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 &low = k[0][c], &high = k[1][c];
      const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
      mma<T>(dot, first, q[c].x, q[c].y);
      mma<T>(dot, second, q[c].z, q[c].w);
    }
  }
};

// What a warp has come to, of heads lane % 4 · 2 and the next.
template <class T, int D>
struct DecodeSoftmax {
  float acc[D / 16][4] = {};
  float maximum[2] = {kLowest, kLowest};
  float sum[2] = {};  // of this lane's keys

  // Before the weights of a tile: `newest` is the largest of this lane's scores.
  __device__ void raise(float (&newest)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      newest[i] = fmaxf(newest[i], maximum[i]);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2)
        newest[i] = fmaxf(newest[i], __shfl_xor_sync(0xffffffffu, newest[i], offset));
      const float shrink = weight_of(maximum[i], newest[i]);
      maximum[i] = newest[i];
      sum[i] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        acc[n][i] *= shrink;
        acc[n][2 + i] *= shrink;
      }
    }
  }

  __device__ static uint32_t word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }

  __device__ void add(const float (&score)[4], const DecodeTile<T, D>& tile) {
    float weight[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weight[i] = weight_of(score[i], maximum[i % 2]);
      sum[i % 2] += weight[i];
    }
    const uint32_t b0 = transposed(pack<T>(weight[0], weight[1])),
                   b1 = transposed(pack<T>(weight[2], weight[3]));
#pragma unroll
    for (int h = 0; h < D / 64; ++h)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) word[i] = word_of(tile.v[i][h], j);
        // Channels 2 j and 2 j + 1 of two keys, and of the two eight further.
        const uint32_t a[4] = {__byte_perm(word[0], word[1], 0x5410), __byte_perm(word[0], word[1], 0x7632),
                               __byte_perm(word[2], word[3], 0x5410), __byte_perm(word[2], word[3], 0x7632)};
        mma<T>(acc[h * 4 + j], a, b0, b1);
      }
  }

  // oᵀ, not yet divided by the sum, and maximum and sum of each head.
  __device__ void leave(float (&o)[kTileHeads][D], float2 (&scores)[kTileHeads]) {
    const int own = threadIdx.x % 32 / 4, at = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
#pragma unroll
      for (int h = 0; h < D / 64; ++h)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          *reinterpret_cast<float2*>(&o[2 * at + i][h * 64 + own * 8 + 2 * j]) = {acc[h * 4 + j][i],
                                                                                  acc[h * 4 + j][2 + i]};
      if (own == 0) scores[2 * at + i] = {maximum[i], sum[i]};
    }
  }
};

}  // namespace megatron::cuda
