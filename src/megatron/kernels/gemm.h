#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// c[m, n] = alpha · a[m, k] · b[k, n] + beta · c (+ bias[n]); with rank 3, one GEMM per index of the first
// dimension. A transposed operand is a transposed view: each matrix has unit stride in one of its last two
// dimensions. Accumulators are fp32 (fp64 for fp64); c may be wider than a and b, as for a weight gradient
// into fp32 main_grad. With beta 0 the old contents of c are not read.
// fp8 operands: rank 2, unit stride along k, and m, n and k multiples of 16. a_scale and b_scale (fp32, on
// the device) multiply their elements: one scale for all, or one for each block of block_rows × 128, the
// latter along k: [⌈m / block_rows⌉, ⌈k / 128⌉] for a and the transpose of that for b. block_rows is 1, with
// unit stride along m (n), or 128 for one of the operands, with unit stride along k and a multiple of four
// between rows. Narrow weights (b_scale without a_scale): b is int8 [k, n] with unit stride along k, on a GPU
// also e4m3; a and c are bf16, or fp32 on the CPU; b_scale is fp32 [⌈n / b_block_rows⌉, ⌈k / 128⌉]. On the
// CPU b is int8 or int4 [⌈k / 2⌉, n], b_scale of each group of a column, contiguous (narrow_weight.h).
// fast_accum lets tensor cores accumulate in fewer bits where each operand has one scale.
struct GemmArgs {
  Tensor a, b, c;
  double alpha = 1, beta = 0;
  Tensor bias;
  Tensor a_scale, b_scale;
  int64_t a_block_rows = 0, b_block_rows = 0;  // 0: one scale for all
  bool fast_accum = false;
  bool static_b = false;  // b is a weight: no work that is under way on the stream writes it
};

// Experts: rows [offsets[e], offsets[e+1]) of `a` go through matrix b[e] (b is [experts, k, n], views
// allowed) into the same rows of c. Rows from offsets[experts] on are not touched. offsets: int32 [experts +
// 1], on the device.
// fp8 operands: unit stride along k, k and n multiples of 16, and so is every offset, of 128 with `blocks`.
// a_scale and b_scale (fp32) multiply their elements: one for each expert, [experts]; or with `blocks` one
// for each 1 × 128 of a along k, [rows, ⌈k / 128⌉] with unit stride along the rows, and one for each 128 ×
// 128 of b, [experts, ⌈k / 128⌉, ⌈n / 128⌉].
struct GroupedGemmArgs {
  Tensor a, b, c, offsets;
  Tensor a_scale = {}, b_scale = {};
  bool blocks = false;
};

// c[e] = beta · c[e] + a[rows of e]ᵀ · b[rows of e]: the weight gradient of GroupedGemmArgs. c is [experts,
// k, n]. An expert without rows gets beta · c[e]. fp8 operands, as above, have unit stride along the rows;
// with `blocks` a scale is that of 128 rows of a column: [k, ⌈rows / 128⌉] for a and [n, ⌈rows / 128⌉] for b,
// with unit stride along the columns of both.
struct GroupedGemmWeightArgs {
  Tensor a, b, c, offsets;
  double beta = 0;
  Tensor a_scale = {}, b_scale = {};
  bool blocks = false;
};

}  // namespace megatron
