#pragma once

#include "megatron/kernels/kernel_table.h"

namespace megatron::cuda {

// y = x · wᵀ (+ bias) for up to 16 rows of x in bf16 and a weight of int8 or e4m3 with scales (b_scale
// without a_scale); false where the shapes are not for it.
bool small_weight_gemm(const KernelContext& ctx, const GemmArgs& args);

}  // namespace megatron::cuda
