#pragma once

#include "megatron/kernels/cpu/gemm.h"

namespace megatron::cpu {

// How a matrix lies in memory, as matrix libraries ask for it: its leading dimension (0 where it has no unit
// stride), and whether it is its transpose that is row-major.
struct Layout {
  int64_t leading = 0;
  bool transposed = false;
};

inline Layout layout_of(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  if ((column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1))
    return {rows == 1 ? columns : row_stride, false};
  if ((row_stride == 1 || rows == 1) && (column_stride >= rows || columns == 1))
    return {columns == 1 ? rows : column_stride, true};
  return {};
}

struct Layouts {
  Layout a, b, c;
  explicit Layouts(const GemmProblem& p)
      : a(layout_of(p.m, p.k, p.a_row, p.a_column)),
        b(layout_of(p.k, p.n, p.b_row, p.b_column)),
        c(layout_of(p.m, p.n, p.c_row, p.c_column)) {}
  bool fit() const { return a.leading && b.leading && c.leading && !c.transposed; }
};

// For a library without a bias of its own: fp32 rows of c += bias.
inline void add_bias(const GemmProblem& p) {
  if (!p.bias) return;
  const float* bias = static_cast<const float*>(p.bias);
  for (int64_t i = 0; i < p.m; ++i) {
    float* row = static_cast<float*>(p.c) + i * p.c_row;
    for (int64_t j = 0; j < p.n; ++j) row[j] += bias[j];
  }
}

}  // namespace megatron::cpu
