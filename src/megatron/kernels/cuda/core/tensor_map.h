#pragma once

#include <cuda.h>

#include <cstdint>

#include "megatron/base/dtype.h"

namespace megatron::cuda {

// Matrices in device memory, with unit stride within their rows.
struct Matrices {
  const void* data;
  int64_t columns, rows, count, row, matrix;  // sizes, then strides in elements
};

// How TMA finds boxes of box_rows rows of row_bytes, 128 or 64, which it writes to shared memory with the
// swizzle of as many bytes. False where the driver, the alignment or the strides do not allow that.
bool make_tensor_map(DType dtype, const Matrices& matrices, int row_bytes, int box_rows, CUtensorMap& map);

}  // namespace megatron::cuda
