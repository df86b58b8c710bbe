#pragma once

#include "megatron/kernels/cuda/attention/attention.cuh"
#include "megatron/kernels/limits/attention.h"

// One warp per row (a query, or in the second backward kernel a key), one lane per column of a tile of 32.
namespace megatron::cuda {

inline constexpr int kTile = limits::kAttentionTile, kWarps = limits::kAttentionWarps;

template <class T>
__device__ void load_tile(const HeadTensor<T>& x, int64_t first, int head, int count, int head_dim,
                          int stride, Compute<T>* to) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kWarps * 32) {
    int row = i / head_dim, c = i - row * head_dim;
    to[row * stride + c] = row < count ? widen(x.row(first + row, head)[c]) : Compute<T>(0);
  }
}

template <class T>
__device__ void load_row(const T* from, int head_dim, Compute<T>* to) {
  for (int c = threadIdx.x % 32; c < head_dim; c += 32) to[c] = widen(from[c]);
}

template <class C>
__device__ C dot(const C* a, const C* b, int n) {
  C sum = 0;
  for (int c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

// acc[i] += Σ over the tile's rows of weight (held by lane `row`) · tile[row][lane + 32 i].
template <int N, class C>
__device__ void accumulate(C (&acc)[N], C weight, const C* tile, int stride, int head_dim) {
  int lane = threadIdx.x % 32;
  for (int row = 0; row < kTile; ++row) {
    C w = __shfl_sync(0xffffffffu, weight, row);
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (int c = lane + 32 * i; c < head_dim) acc[i] += w * tile[row * stride + c];
  }
}

template <int N, class T>
__device__ void write_row(T* to, const Compute<T> (&acc)[N], Compute<T> factor, int head_dim) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (int c = lane + 32 * i; c < head_dim) to[c] = narrow<T>(acc[i] * factor);
}

// f(std::integral_constant<int, N>) with N elements of head_dim, at most limits::kMaxHeadDim, per lane.
template <class F>
void dispatch_head_dim(int head_dim, F&& f) {
  if (head_dim <= 64) return f(std::integral_constant<int, 2>{});
  if (head_dim <= 128) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 8>{});
}

template <class Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "reserving shared memory for attention");
}

}  // namespace megatron::cuda
