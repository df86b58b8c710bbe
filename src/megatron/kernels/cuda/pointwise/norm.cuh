#pragma once

#include "megatron/kernels/cuda/core/row_shape.cuh"
#include "megatron/kernels/cuda/core/rows.cuh"

namespace megatron::cuda {

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args);

}  // namespace megatron::cuda
