#pragma once

#include "megatron/kernels/cpu/isa/vector.h"

// GEMMs of tiles that lie in the first two cache levels: c[m, n] (+)= a[m, k] · b[k, n], where n is a
// multiple of the vector width, b and c are row-major, and a has any strides. Elements of a are repeated
// over a vector, rows of b are loaded as vectors, and a block of c stays in registers.
namespace megatron::cpu::MEGATRON_ISA {

// Vectors of a row side by side: 4 × 4 of AVX-512's 32 registers hold c, 4 × 2 of AVX2's 16.
inline constexpr int kPanel = kVectorBytes == 64 ? 4 : 2;
inline constexpr int kTileRows = 4;

template <class C>
struct TileGemmArgs {
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
inline void tile_block(const TileGemmArgs<C>& p, const C* a, const C* b, C* c) {
  using V = Vector<C>;
  constexpr int64_t w = kVectorWidth<C>;
  V sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[i][v] = p.accumulate ? load_vector(c + i * p.c_row + v * w) : V{};
  for (int64_t k = 0; k < p.k; ++k, a += p.a_column, b += p.b_row) {
    V row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) row[v] = load_vector(b + v * w);
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
    for (int v = 0; v < Vectors; ++v) store_vector(c + i * p.c_row + v * w, sum[i][v]);
}

template <int Vectors, class C>
void tile_panel(const TileGemmArgs<C>& p, int64_t column) {
  const C* b = p.b + column;
  int64_t i = 0;
  for (; i + kTileRows <= p.m; i += kTileRows)
    tile_block<kTileRows, Vectors>(p, p.a + i * p.a_row, b, p.c + i * p.c_row + column);
  for (; i < p.m; ++i) tile_block<1, Vectors>(p, p.a + i * p.a_row, b, p.c + i * p.c_row + column);
}

template <class C>
void tile_gemm(const TileGemmArgs<C>& p) {
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
