#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// x [rows, columns] in blocks of block_rows × block_columns (0: the whole extent) to fp8. inverse_scale
// holds, per block, amax / largest: x ≈ q · inverse_scale. A block of zeros gets 1. Values are clamped before
// the cast.
struct QuantizeArgs {
  Tensor x, q, inverse_scale;
  int64_t block_rows = 0, block_columns = 0;
};
struct DequantizeArgs {
  Tensor q, inverse_scale, x;
  int64_t block_rows = 0, block_columns = 0;
};

}  // namespace megatron
