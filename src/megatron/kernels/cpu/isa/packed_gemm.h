#pragma once

#include "megatron/kernels/cpu/gemm.h"
#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/scratch.h"

// Our own GEMM: A and B are packed into panels, and a tile of c stays in registers over a block of k. It
// serves fp64, fp16, unusual strides, and builds without a GEMM library.
namespace megatron::cpu::MEGATRON_ISA {

// The part of c that stays in registers while k runs: two vectors wide.
template <class C>
struct Tile {
#ifdef __AVX512F__
  static constexpr int bytes = 64, rows = 12;  // 24 of 32 registers
#else
  static constexpr int bytes = 32, rows = 6;  // 12 of 16
#endif
  typedef C Vector __attribute__((vector_size(bytes)));
  static constexpr int lanes = bytes / sizeof(C), columns = 2 * lanes;
};

// Maximum size of a task: its packed panels and accumulators stay in the L2 cache.
inline constexpr int64_t kTaskRows = 192, kTaskColumns = 256, kTaskK = 256;

// acc[rows, columns] (+)= a[k_size][rows] ⊗ b[k_size][columns].
template <class C>
inline void multiply_tile(int64_t k_size, const C* a, const C* b, C* acc, int64_t stride, bool first) {
  using T = Tile<C>;
  using Vector = typename T::Vector;
  Vector tile[T::rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < T::rows; ++i)
    for (int j = 0; j < 2; ++j)
      if (first)
        tile[i][j] = Vector{};
      else
        __builtin_memcpy(&tile[i][j], acc + i * stride + j * T::lanes, sizeof(Vector));
  for (int64_t p = 0; p < k_size; ++p) {
    Vector b0, b1;
    __builtin_memcpy(&b0, b, sizeof b0);
    __builtin_memcpy(&b1, b + T::lanes, sizeof b1);
#pragma GCC unroll 16
    for (int i = 0; i < T::rows; ++i) {
      tile[i][0] += a[i] * b0;
      tile[i][1] += a[i] * b1;
    }
    a += T::rows;
    b += T::columns;
  }
#pragma GCC unroll 16
  for (int i = 0; i < T::rows; ++i)
    for (int j = 0; j < 2; ++j)
      __builtin_memcpy(acc + i * stride + j * T::lanes, &tile[i][j], sizeof(Vector));
}

// Packs a matrix [lines, k_size] into panels [k_size][width] of `width` lines each; missing lines are zero.
template <int width, class S, class C>
void pack(const S* source, int64_t line_stride, int64_t k_stride, int64_t lines, int64_t k_size, C* panels) {
  for (int64_t first = 0; first < lines; first += width) {
    int64_t count = std::min<int64_t>(width, lines - first);
    const S* panel = source + first * line_stride;
    if (count < width) std::fill_n(panels, k_size * width, C(0));
    if (line_stride == 1) {
      for (int64_t p = 0; p < k_size; ++p)
        for (int64_t i = 0; i < count; ++i) panels[p * width + i] = static_cast<C>(panel[p * k_stride + i]);
    } else {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t p = 0; p < k_size; ++p)
          panels[p * width + i] = static_cast<C>(panel[i * line_stride + p * k_stride]);
    }
    panels += k_size * width;
  }
}

template <class In, class Out>
void store_accumulators(const GemmProblem& p, const Compute<In>* acc, int64_t stride) {
  using C = Compute<In>;
  Out* c = static_cast<Out*>(p.c);
  const In* bias = static_cast<const In*>(p.bias);
  C alpha = C(p.alpha), beta = C(p.beta);
  for (int64_t i = 0; i < p.m; ++i) {
    const C* row = acc + i * stride;
    for (int64_t j = 0; j < p.n; ++j) {
      Out& target = c[i * p.c_row + j * p.c_column];
      C value = alpha * row[j];
      if (bias) value += C(bias[j]);
      if (beta != C(0)) value += beta * static_cast<C>(target);
      target = Out(value);
    }
  }
}

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// At most kTaskRows by kTaskColumns.
template <class In>
void packed_gemm(const KernelContext& ctx, const GemmProblem& p) {
  using C = Compute<In>;
  using T = Tile<C>;
  int64_t rows = round_up(p.m, T::rows), columns = round_up(p.n, T::columns);
  int64_t k_limit = std::min(kTaskK, p.k);
  Scratch<C> a_panels(ctx, rows * k_limit), b_panels(ctx, columns * k_limit);
  Scratch<C> acc(ctx, rows * columns);
  if (p.k == 0) std::fill_n(acc.data(), rows * columns, C(0));
  for (int64_t begin = 0; begin < p.k; begin += kTaskK) {
    int64_t k_size = std::min(kTaskK, p.k - begin);
    pack<T::rows>(static_cast<const In*>(p.a) + begin * p.a_column, p.a_row, p.a_column, p.m, k_size,
                  a_panels.data());
    pack<T::columns>(static_cast<const In*>(p.b) + begin * p.b_row, p.b_column, p.b_row, p.n, k_size,
                     b_panels.data());
    for (int64_t i = 0; i < rows; i += T::rows)
      for (int64_t j = 0; j < columns; j += T::columns)
        multiply_tile<C>(k_size, a_panels.data() + i * k_size, b_panels.data() + j * k_size,
                         acc.data() + i * columns + j, columns, begin == 0);
  }
  dispatch_float("gemm", p.out,
                 [&]<class Out>(Type<Out>) { store_accumulators<In, Out>(p, acc.data(), columns); });
}

}  // namespace megatron::cpu::MEGATRON_ISA
