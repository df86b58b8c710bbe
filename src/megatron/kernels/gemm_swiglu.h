#pragma once

#include "megatron/device/kernel_context.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// GEMMs with SwiGLU in their epilogue, forward and backward, which saves reading their output again. Each
// returns false, and has done nothing, where the device has no such kernel for these tensors.

// x [rows, 2 n] = a [rows, k] · bᵀ, where b [2 n, k] has the rows of the gate, then those of up;
// y [rows, n] = silu(gate) · up, of the gate and up that x holds.
struct GemmSwigluArgs {
  Tensor a, b, x, y;
};
bool gemm_swiglu(const KernelContext& ctx, const GemmSwigluArgs& args);

// dx [rows, 2 n], the gradient of x, where that of y is a [rows, k] · b [k, n]. dx may be x.
struct GemmSwigluBackwardArgs {
  Tensor a, b, x, dx;
};
bool gemm_swiglu_backward(const KernelContext& ctx, const GemmSwigluBackwardArgs& args);

}  // namespace megatron
