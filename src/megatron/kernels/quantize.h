#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// x [rows, columns] in blocks of block_rows × block_columns (0: the whole extent) to fp8. inverse_scale
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
struct DequantizeArgs {
  Tensor q, inverse_scale, x;
  int64_t block_rows = 0, block_columns = 0;
};

}  // namespace megatron
