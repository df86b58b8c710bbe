#pragma once

#include "megatron/ops/linear_format.h"

namespace megatron::ops {

// Quantisation of weights alone, for forward passes: int8 or e4m3 values with an fp32 scale for each 128
// numbers of a row, or e4m3 ones for each 128 × 128, which GEMMs of many rows can read as they are; on the
// CPU also int4 (kernels/narrow_weight.h) of an even number of columns. `weight` is […, rows, columns];
// `by_row` is for a table whose rows are looked up.
Weight quantize_weight(RankContext& ctx, const Tensor& weight, DType dtype, bool by_row);

// Rows that a scale of such a weight belongs to: 1 or 128.
int64_t scale_rows(const Weight& weight);

// Columns of the matrix that any weight stands for.
int64_t columns_of(const Weight& weight);

// y = x · weightᵀ for such weights. Up to 16 rows of x read the values at the speed of memory. Of more
// rows on a GPU, x is rounded to fp8 as well where the weight has squares, but for the last rows that are not
// 16; otherwise up to 48 rows read the values again, and for more the weight is widened, slab by slab.
std::shared_ptr<const LinearFormat> quantized_weight_format();

}  // namespace megatron::ops
