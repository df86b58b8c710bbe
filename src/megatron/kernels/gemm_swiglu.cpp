#include "megatron/kernels/gemm_swiglu.h"

#include "megatron/kernels/backends.h"

namespace megatron {

bool gemm_swiglu(const KernelContext& ctx, const GemmSwigluArgs& args) {
  return args.x.device().is_cuda() && cuda_gemm_swiglu(ctx, args);
}

bool gemm_swiglu_backward(const KernelContext& ctx, const GemmSwigluBackwardArgs& args) {
  return args.x.device().is_cuda() && cuda_gemm_swiglu_backward(ctx, args);
}

}  // namespace megatron
