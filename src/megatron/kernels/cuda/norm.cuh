#pragma once

#include "megatron/kernels/cuda/rows.cuh"

namespace megatron::cuda {

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args);

// How a row lies in registers: `Items` vectors of W elements in each of blockDim.x threads, whole warps.
// threadIdx.y counts the rows that a block treats side by side.
template <int W, int Items>
struct RowShape {
  static constexpr int kMostRows = 4;
  static constexpr int64_t columns(int threads) { return int64_t{threads} * Items * W; }

  __device__ static int64_t column(int item) {
    return (static_cast<int64_t>(item) * blockDim.x + threadIdx.x) * W;
  }
};

// A vector in words, as it came from memory. Held as elements, those of two bytes would take a register each,
// and so would what they widen to.
template <class T, int W>
struct Packed {
  static constexpr bool kHalf = sizeof(T) * W < 4;
  static constexpr int kWords = kHalf ? 1 : sizeof(T) * W / 4;
  uint32_t word[kWords];

  __device__ void put(const Vec<T, W>& value) {
    if constexpr (kHalf)
      word[0] = __builtin_bit_cast(uint16_t, value);
    else
      put_words(__builtin_bit_cast(Vec<uint32_t, kWords>, value));
  }
  __device__ Vec<T, W> get() const {
    if constexpr (kHalf) {
      return __builtin_bit_cast(Vec<T, W>, static_cast<uint16_t>(word[0]));
    } else {
      Vec<uint32_t, kWords> words;
#pragma unroll
      for (int i = 0; i < kWords; ++i) words.v[i] = word[i];
      return __builtin_bit_cast(Vec<T, W>, words);
    }
  }
  // What was made of it so far is not kept for later uses, which make it again.
  __device__ void forget() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(word[i]));
  }

 private:
  __device__ void put_words(const Vec<uint32_t, kWords>& words) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = words.v[i];
  }
};

// A row's sum, for all of its threads. Where a row has several warps they meet once: `partial` must be
// another one of two from call to call, so that a slow warp may still read the last one's.
template <class C>
struct RowSums {
  C (*partial)[RowShape<1, 1>::kMostRows][32];

  __device__ C sum(C value, int turn) const {
    value = warp_sum(value);
    const unsigned warps = blockDim.x / 32;
    if (warps == 1) return value;
    C* mine = partial[turn][threadIdx.y];
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = value;
    // One barrier for each row, since their loops may end apart.
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory");
    value = 0;
    for (unsigned w = 0; w < warps; ++w) value += mine[w];
    return value;
  }
};

}  // namespace megatron::cuda
