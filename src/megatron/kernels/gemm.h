#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// c[m, n] = alpha · a[m, k] · b[k, n] + beta · c (+ bias[n]); with rank 3, one product per index of the first
// dimension. A transposed operand is a transposed view: each matrix has unit stride in one of its last two
// dimensions. Sums are kept in fp32 (fp64 for fp64); c may be wider than a and b, as for a weight gradient
// into fp32 main_grad. With beta 0 the old contents of c are not read.
// Of fp8 operands, rank 2 only, both have unit stride along k, m, n and k are multiples of 16, and a_scale
// and b_scale (fp32, one element, on the device) are what their elements are multiplied by. fast_sums lets
// the hardware keep fewer bits of their sums.
struct GemmArgs {
  Tensor a, b, c;
  double alpha = 1, beta = 0;
  Tensor bias;
  Tensor a_scale, b_scale;
  bool fast_sums = false;
};

// Experts: rows [offsets[e], offsets[e+1]) of `a` go through matrix b[e] (b is [experts, k, n], views
// allowed) into the same rows of c. Rows from offsets[experts] on are not touched. offsets: int32 [experts +
// 1], on the device.
struct GroupedGemmArgs {
  Tensor a, b, c, offsets;
};

// c[e] = beta · c[e] + a[rows of e]ᵀ · b[rows of e]: the weight gradient of GroupedGemmArgs. c is [experts,
// k, n]. An expert without rows gets beta · c[e].
struct GroupedGemmWeightArgs {
  Tensor a, b, c, offsets;
  double beta = 0;
};

}  // namespace megatron
