#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/kernels/narrow_weight.h"

namespace megatron::ops {

// x ≈ data · inverse_scale of its block.
struct Quantized {
  Tensor data, inverse_scale;                 // [rows, columns]; fp32 [blocks down, blocks across]
  int64_t block_rows = 0, block_columns = 0;  // 0: the whole extent
  int64_t columns = 0;                        // 0: all that the elements of a row hold
};

// x [rows, columns] in fp8 or int8, with a scale per block that brings its largest magnitude to the format's
// largest value; on the CPU in blocks of 1 × 32 also in int4 (kernels/narrow_weight.h). x must be detached:
// rounding has no gradient, and fp8 data cannot carry one of its input's width. A layer that trains through
// it is a node of its own, which passes the gradient straight through.
Quantized quantize(RankContext& ctx, const Tensor& x, DType dtype, int64_t block_rows = 0,
                   int64_t block_columns = 0);
Tensor dequantize(RankContext& ctx, const Quantized& x, DType dtype);

}  // namespace megatron::ops
