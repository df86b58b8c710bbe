#pragma once

#include "megatron/kernels/cuda/quantize/fp8.cuh"

namespace megatron::cuda {

// A tile of 128 × 128 per thread block on its way from 16-bit numbers to fp8, as it is and transposed. A
// thread has eight columns of twice four rows, so that four values of a column make a word of the transposed
// tile; the lanes of a warp cover 32 rows of 32 columns, which spreads those words over all banks. The last
// rows come first: they were written last, and may still be in the cache; and the first are left there for
// what reads the result.
struct Fp8Tile {
  static constexpr int kSize = 128, kPitch = kSize / 4 + 1;  // of the transposed tile, in words
  int64_t rows, columns;                                     // of the matrix
  int64_t down, across;                                      // which tile
  int lane, warp, row, column;                               // of this thread in it; and row + 64

  __device__ Fp8Tile(int64_t rows, int64_t columns)
      : Fp8Tile(rows, columns, gridDim.y - 1 - blockIdx.y, blockIdx.x) {}
  __device__ Fp8Tile(int64_t rows, int64_t columns, int64_t down, int64_t across)
      : rows(rows),
        columns(columns),
        down(down),
        across(across),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        row(warp / 4 * 32 + lane / 4 * 4),
        column(warp % 4 * 32 + lane % 4 * 8) {}

  __device__ bool has(int pass) const {
    return across * kSize + column < columns && down * kSize + pass * 64 + row < rows;
  }
  // Index of the first of eight values.
  __device__ int64_t index(int pass, int r) const {
    return (down * kSize + pass * 64 + row + r) * columns + across * kSize + column;
  }

  // Packed pairs of values; zeros beyond the matrix.
  template <class T>
  __device__ __forceinline__ void load(uint32_t (&raw)[2][4][4], const T* x) const {
    static_assert(sizeof(T) == 2);
#pragma unroll
    for (int pass = 0; pass < 2; ++pass)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        uint4 bits{};
        if (has(pass)) bits = __builtin_bit_cast(uint4, read<8>(x + index(pass, r)));
        raw[pass][r][0] = bits.x, raw[pass][r][1] = bits.y, raw[pass][r][2] = bits.z,
        raw[pass][r][3] = bits.w;
      }
  }

  // Eight bytes of four rows each to the transposed tile in shared memory.
  __device__ __forceinline__ void turn(uint32_t* tile, const uint32_t (&word)[4][2], int pass) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t pick = static_cast<uint32_t>(j) | static_cast<uint32_t>(j + 4) << 4;
        uint32_t top = __byte_perm(word[0][half], word[1][half], pick);
        uint32_t bottom = __byte_perm(word[2][half], word[3][half], pick);
        tile[(column + half * 4 + j) * kPitch + pass * 16 + row / 4] = __byte_perm(top, bottom, 0x5410);
      }
  }
  template <class Q>
  __device__ __forceinline__ void store_transposed(const uint32_t* tile, Q* transposed) const {
    const int64_t first = down * kSize + lane * 4;
    if (first >= rows) return;
#pragma unroll 4
    for (int c = warp; c < kSize; c += kThreads / 32)
      if (across * kSize + c < columns)
        *reinterpret_cast<uint32_t*>(transposed + (across * kSize + c) * rows + first) =
            tile[c * kPitch + lane];
  }
};

// Two 16-bit numbers, packed.
template <class T>
__device__ __forceinline__ float low(uint32_t pair) {
  return widen(__builtin_bit_cast(T, static_cast<uint16_t>(pair)));
}
template <class T>
__device__ __forceinline__ float high(uint32_t pair) {
  return widen(__builtin_bit_cast(T, static_cast<uint16_t>(pair >> 16)));
}

}  // namespace megatron::cuda
