#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// x [rows, columns] in blocks of block_rows × block_columns (0: the whole extent) to fp8 or int8, on the CPU
// in blocks of 1 × 32 also to int4 with its bf16 scales (narrow_weight.h). Of fp8 and int8, inverse_scale
// (fp32, [blocks down, blocks across]) holds amax / largest of each block: x ≈ q · inverse_scale. A block of
// zeros gets 1. The last bit follows two conventions: several blocks divide by amax / largest (DeepSeek's
// recipe), a single block multiplies by largest / amax, and inverse_scale is one over that (Transformer
// Engine's). Values are clamped before the cast; NaN stays NaN.
struct QuantizeArgs {
  Tensor x, q, inverse_scale;
  int64_t block_rows = 0, block_columns = 0;
  Tensor transposed;  // qᵀ [columns, rows], beside q; optional
  // Of a single block, each optional, fp32 with one element: `scale` is what x is multiplied by, whatever its
  // own magnitude is (delayed scaling); `amax` becomes the larger of itself and x's largest magnitude.
  Tensor scale, amax;
};

// x in fp8 with a scale for each group, as QuantizeArgs has it for a single block, and transposed beside it.
// Groups are the matrices of x [groups, rows, columns], which are transposed one by one, or the rows
// [offsets[g], offsets[g + 1]) of x [rows, columns], which is transposed as a whole; rows of no group hold no
// values afterwards. offsets: int32 [groups + 1], on the device; groups begin at multiples of 16 rows.
// inverse_scale, scale and amax: fp32 [groups], of which the latter two are optional and may have gaps.
struct QuantizeGroupedArgs {
  Tensor x, offsets;
  Tensor q, transposed, inverse_scale;
  Tensor scale, amax;
};

// For GEMMs with a scale per block: x [rows, columns] in fp8, as it is and transposed, each in blocks of
// block_rows (1 or 128) × 128 of its own. Single rows of the two hold different numbers, so both are rounded
// from x. A block is multiplied by the largest power of two that keeps it within the format (1 if it is all
// zero), and inverse_scale is one over that: scaling rounds nothing. The strides of the scales are free, as
// gemm wants them in a layout of its own. NaN and infinity make their block NaN.
struct QuantizeBlocksArgs {
  Tensor x;
  Tensor q, inverse_scale;                      // fp32 [⌈rows / block_rows⌉, ⌈columns / 128⌉]
  Tensor transposed, transposed_inverse_scale;  // of [columns, rows]
  int64_t block_rows = 1;
};

// The strides of inverse_scale are free.
struct DequantizeArgs {
  Tensor q, inverse_scale, x;
  int64_t block_rows = 0, block_columns = 0;
};

}  // namespace megatron
