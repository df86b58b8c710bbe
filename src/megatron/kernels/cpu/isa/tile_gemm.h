#pragma once

#include <cstdint>

// Products of tiles that lie in the first two cache levels: c[m, n] (+)= a[m, k] · b[k, n], where n is a
// multiple of the vector width, b and c are row-major, and a has any strides. Elements of a are repeated
// over a vector, rows of b are loaded as vectors, and a block of c stays in registers.
namespace megatron::cpu::MEGATRON_ISA {

#ifdef __AVX512F__
inline constexpr int kVectorBytes = 64, kPanel = 4;  // vectors side by side: 4 × 4 of 32 registers hold c
#else
inline constexpr int kVectorBytes = 32, kPanel = 2;
#endif
inline constexpr int kTileRows = 4;

template <class C>
inline constexpr int64_t kVectorWidth = kVectorBytes / sizeof(C);

template <class C>
constexpr int64_t round_to_vector(int64_t n) {
  return (n + kVectorWidth<C> - 1) / kVectorWidth<C> * kVectorWidth<C>;
}

template <class C>
struct VectorOf {
  typedef C type __attribute__((vector_size(kVectorBytes), aligned(sizeof(C)), may_alias));
};
template <class C>
using Vector = typename VectorOf<C>::type;

template <class C>
struct TileProduct {
  const C* a;
  int64_t a_row, a_column;
  const C* b;
  int64_t b_row;
  C* c;
  int64_t c_row;
  int64_t m, n, k;
  bool accumulate;
};

template <int Rows, int Vectors, class C>
inline void tile_block(const TileProduct<C>& p, const C* a, const C* b, C* c) {
  using V = Vector<C>;
  constexpr int64_t w = kVectorWidth<C>;
  V sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v)
      sum[i][v] = p.accumulate ? *reinterpret_cast<const V*>(c + i * p.c_row + v * w) : V{};
  for (int64_t k = 0; k < p.k; ++k, a += p.a_column, b += p.b_row) {
    V row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) row[v] = *reinterpret_cast<const V*>(b + v * w);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      C x = a[i * p.a_row];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[i][v] += x * row[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) *reinterpret_cast<V*>(c + i * p.c_row + v * w) = sum[i][v];
}

template <int Vectors, class C>
void tile_panel(const TileProduct<C>& p, int64_t column) {
  const C* b = p.b + column;
  int64_t i = 0;
  for (; i + kTileRows <= p.m; i += kTileRows)
    tile_block<kTileRows, Vectors>(p, p.a + i * p.a_row, b, p.c + i * p.c_row + column);
  for (; i < p.m; ++i) tile_block<1, Vectors>(p, p.a + i * p.a_row, b, p.c + i * p.c_row + column);
}

template <class C>
void tile_gemm(const TileProduct<C>& p) {
  constexpr int64_t w = kVectorWidth<C>;
  int64_t column = 0;
  for (; column + kPanel * w <= p.n; column += kPanel * w) tile_panel<kPanel>(p, column);
  switch ((p.n - column) / w) {
    case 3:
      return tile_panel<3>(p, column);
    case 2:
      return tile_panel<2>(p, column);
    case 1:
      return tile_panel<1>(p, column);
    default:
      return;
  }
}

}  // namespace megatron::cpu::MEGATRON_ISA
