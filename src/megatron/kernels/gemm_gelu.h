#pragma once

#include "megatron/device/kernel_context.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// GEMMs with GELU (tanh form) in their epilogue, forward and backward, as gemm_swiglu.h has SwiGLU. GELU is
// of the accumulators before rounding. Each returns false, and has done nothing that lasts, where the device
// has no such kernel for these tensors or autotuning found two kernels faster.

// x [rows, n] = a [rows, k] · bᵀ (+ bias [n]), where b is [n, k]; y [rows, n] = gelu(x).
struct GemmGeluArgs {
  Tensor a, b, bias, x, y;
};
bool gemm_gelu(const KernelContext& ctx, const GemmGeluArgs& args);

// dx [rows, n], the gradient of x, where that of y is a [rows, k] · b [k, n].
struct GemmGeluBackwardArgs {
  Tensor a, b, x, dx;
};
bool gemm_gelu_backward(const KernelContext& ctx, const GemmGeluBackwardArgs& args);

}  // namespace megatron
