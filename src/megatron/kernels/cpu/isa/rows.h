#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron::cpu::MEGATRON_ISA {

// The rows (last dimension, unit stride) of a tensor of any rank whose other dimensions are strided: the
// offset of row r is found by splitting r over at most two of them.
struct Rows {
  int64_t count = 1, columns = 1;
  int64_t inner = 1, inner_stride = 0, outer_stride = 0;

  int64_t offset(int64_t row) const { return row / inner * outer_stride + row % inner * inner_stride; }
};

// Ranks above three must be contiguous in all but the last two dimensions.
inline Rows rows_of(const Tensor& tensor) {
  Rows rows;
  int rank = tensor.rank();
  if (rank == 0) return rows;
  rows.columns = tensor.size(-1);
  for (int d = 0; d < rank - 1; ++d) rows.count *= tensor.size(d);
  if (tensor.is_contiguous() || rank < 2) {
    rows.inner = std::max<int64_t>(rows.count, 1);
    rows.inner_stride = rows.columns;
    return rows;
  }
  rows.inner = std::max<int64_t>(tensor.size(-2), 1);
  rows.inner_stride = tensor.stride(-2);
  if (rank > 2) rows.outer_stride = tensor.stride(-3);
  return rows;
}

}  // namespace megatron::cpu::MEGATRON_ISA
