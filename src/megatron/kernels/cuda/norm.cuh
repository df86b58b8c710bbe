#pragma once

#include "megatron/kernels/cuda/row_shape.cuh"
#include "megatron/kernels/cuda/rows.cuh"

namespace megatron::cuda {

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args);

}  // namespace megatron::cuda
