#pragma once

#include <algorithm>
#include <cstdint>

#include "megatron/kernels/cpu/isa/dispatch.h"

namespace megatron::cpu::MEGATRON_ISA {

// Elementwise kernels work on blocks that stay in the first-level cache: narrow types are widened into a
// buffer, computed on as fp32, and narrowed again, so that each function is compiled for fp32 and fp64 only.
inline constexpr int64_t kBlock = 512;

template <class C>
using Buffer = C[kBlock];

// The values as Compute<T>: in `buffer`, or where they are if no conversion is needed.
template <class T>
inline const Compute<T>* widened(const T* x, int64_t n, Compute<T>* buffer) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return x;
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<float>(x[i]);
    return buffer;
  }
}

// Where results for y are to be computed, and the step that brings them there.
template <class T>
inline Compute<T>* result_buffer(T* y, Compute<T>* buffer) {
  if constexpr (std::is_same_v<T, Compute<T>>)
    return y;
  else
    return buffer;
}
template <class T>
inline void narrow(const Compute<T>* result, int64_t n, T* y) {
  if constexpr (!std::is_same_v<T, Compute<T>>)
    for (int64_t i = 0; i < n; ++i) y[i] = T(result[i]);
}

// Calls f(offset, column, n) for blocks of a [rows, columns] array, none of which spans two rows, in
// parallel.
template <class F>
void for_each_block(const KernelContext& ctx, int64_t rows, int64_t columns, F&& f) {
  if (columns == 0) return;
  ctx.pool.parallel_for(rows, std::max<int64_t>(1, kGrain / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0; column < columns; column += kBlock)
        f(row * columns + column, column, std::min(kBlock, columns - column));
  });
}

// The same for a flat array of n elements.
template <class F>
void for_each_block(const KernelContext& ctx, int64_t n, F&& f) {
  ctx.pool.parallel_for((n + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) f(block * kBlock, std::min(kBlock, n - block * kBlock));
  });
}

}  // namespace megatron::cpu::MEGATRON_ISA
