#pragma once

#include <cstdint>

#include "megatron/base/dtype.h"

namespace megatron::cpu {

// One GEMM for one thread: c = alpha · a · b + beta · c (+ bias). a and b are of dtype `in`, as is
// bias; c of dtype `out`. Strides are in elements.
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

// The CPU's matrix library, oneDNN or else OpenBLAS. Supported: whether it takes this GEMM, strides
// included; a build with neither supports none. It runs in the calling thread, for kernels split their work
// themselves; with more threads they are the library's own, for measuring what it does by itself.
bool library_supports(const GemmProblem& problem);
void library_run(const GemmProblem& problem, int threads = 1);
// Whether the order in which it sums an element's terms depends on the shape of the GEMM: then GEMMs
// must be cut alike whatever the number of threads.
bool library_sums_by_shape();

}  // namespace megatron::cpu
