#include "megatron/kernels/cpu/gemm.h"

namespace megatron::cpu {

GemmProblem GemmProblem::part(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
  auto in_size = static_cast<int64_t>(size_of(in)), out_size = static_cast<int64_t>(size_of(out));
  GemmProblem part = *this;
  part.m = rows;
  part.n = columns;
  part.a = static_cast<const char*>(a) + row * a_row * in_size;
  part.b = static_cast<const char*>(b) + column * b_column * in_size;
  part.c = static_cast<char*>(c) + (row * c_row + column * c_column) * out_size;
  if (bias) part.bias = static_cast<const char*>(bias) + column * in_size;
  return part;
}

}  // namespace megatron::cpu
