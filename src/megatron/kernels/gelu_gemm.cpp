#include "megatron/kernels/gelu_gemm.h"

#include "megatron/kernels/backends.h"

namespace megatron {

bool gelu_gemm(const KernelContext& ctx, const GeluGemmArgs& args) {
  return args.x.device().is_cuda() && cuda_gelu_gemm(ctx, args);
}

bool gelu_gemm_backward(const KernelContext& ctx, const GeluGemmBackwardArgs& args) {
  return args.x.device().is_cuda() && cuda_gelu_gemm_backward(ctx, args);
}

}  // namespace megatron
