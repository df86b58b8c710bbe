#pragma once

#include <cstdint>

#include "megatron/base/dtype.h"

namespace megatron::cpu {

// One GEMM for one thread: c = alpha · a · b + beta · c (+ bias). a, b and bias are of dtype `in`, c of
// dtype `out`. Strides are in elements.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  DType in = DType::F32, out = DType::F32;
  const void* a = nullptr;
  int64_t a_row = 0, a_column = 0;
  const void* b = nullptr;
  int64_t b_row = 0, b_column = 0;
  void* c = nullptr;
  int64_t c_row = 0, c_column = 0;
  double alpha = 1, beta = 0;
  const void* bias = nullptr;  // [n], unit stride

  // The part with rows [row, row + rows) and columns [column, column + columns) of c.
  GemmProblem part(int64_t row, int64_t rows, int64_t column, int64_t columns) const;
};

// The CPU's GEMM library, oneDNN or else OpenBLAS. library_supports: whether it takes this problem, strides
// included; a build with neither supports none. library_run runs in the calling thread, since kernels split
// their work themselves. With `threads` > 1 the library's own threads run, for benchmarks.
bool library_supports(const GemmProblem& problem);
void library_run(const GemmProblem& problem, int threads = 1);
// Whether the library's summation order depends on the problem's shape: then problems must be cut alike for
// any number of threads.
bool library_sums_by_shape();

}  // namespace megatron::cpu
