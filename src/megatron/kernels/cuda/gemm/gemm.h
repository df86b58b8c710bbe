#pragma once

#include "megatron/kernels/kernel_table.h"

namespace megatron::cuda {

// c[…, n] += bias[n], and c *= factor (0 does not read c), where cuBLASLt cannot.
void add_bias(const KernelContext& ctx, const Tensor& c, const Tensor& bias);
void scale(const KernelContext& ctx, const Tensor& c, double factor);

}  // namespace megatron::cuda
