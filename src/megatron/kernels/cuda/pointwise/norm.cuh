#pragma once

#include "megatron/kernels/cuda/core/row_shape.cuh"
#include "megatron/kernels/cuda/core/rows.cuh"

namespace megatron::cuda {

// Rows of sixteen vectors, as heads of 128 elements are: two of them fill a warp. Its halves sum by shuffles
// of all lanes, so that they must have as many rows.
inline constexpr int kHalfWarp = 16;
inline bool two_rows_fill_a_warp(const Rows& rows, int width) {
  return rows.columns == int64_t{kHalfWarp} * width && rows.count % 2 == 0;
}

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args);

}  // namespace megatron::cuda
