#include "megatron/kernels/gemm_gelu.h"

#include "megatron/kernels/backends.h"

namespace megatron {

bool gemm_gelu(const KernelContext& ctx, const GemmGeluArgs& args) {
  return args.x.device().is_cuda() && cuda_gemm_gelu(ctx, args);
}

bool gemm_gelu_backward(const KernelContext& ctx, const GemmGeluBackwardArgs& args) {
  return args.x.device().is_cuda() && cuda_gemm_gelu_backward(ctx, args);
}

}  // namespace megatron
