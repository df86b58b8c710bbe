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

// Encodes the tensor map of boxes of box_rows rows of row_bytes, 128 or 64, with the swizzle of as many
// bytes. False where driver, alignment or strides do not allow it.
bool make_tensor_map(DType dtype, const Matrices& matrices, int row_bytes, int box_rows, CUtensorMap& map);

}  // namespace megatron::cuda
