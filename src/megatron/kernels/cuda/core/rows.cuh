#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

namespace megatron::cuda {

// The rows (last dimension, unit stride) of a tensor whose other dimensions may be strided: the offset of row
// r is found by splitting r over at most two of them.
struct Rows {
  int64_t count = 1, columns = 1;
  int64_t inner = 1, inner_stride = 0, outer_stride = 0;

  __host__ __device__ int64_t offset(int64_t row) const {
    if (outer_stride == 0) return row * inner_stride;  // spares the divisions of the usual case
    const auto r = static_cast<uint32_t>(row), by = static_cast<uint32_t>(inner), outer = r / by;
    return outer * outer_stride + (r - outer * by) * inner_stride;
  }
};

// Ranks above three must be contiguous in all but the last two dimensions. Fewer than 2³² rows: divisions of
// 64 bits would cost a kernel more registers than the rest of it.
inline Rows rows_of(const Tensor& tensor) {
  Rows rows;
  if (!tensor.defined()) return rows;
  int rank = tensor.rank();
  if (rank == 0) return rows;
  rows.columns = tensor.size(-1);
  for (int d = 0; d < rank - 1; ++d) rows.count *= tensor.size(d);
  require(rows.count >> 32 == 0, "{} has too many rows for the CUDA kernels", tensor);
  if (tensor.is_contiguous() || rank < 2) {
    rows.inner = std::max<int64_t>(rows.count, 1);
    rows.inner_stride = rows.columns;
    return rows;
  }
  rows.inner = std::max<int64_t>(tensor.size(-2), 1);
  rows.inner_stride = tensor.stride(-2);
  if (rank > 2 && tensor.size(-3) > 1) rows.outer_stride = tensor.stride(-3);
  return rows;
}

}  // namespace megatron::cuda
