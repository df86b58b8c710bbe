#include "megatron/kernels/gated_gemm.h"

#include "megatron/kernels/backends.h"

namespace megatron {

bool gated_gemm(const KernelContext& ctx, const GatedGemmArgs& args) {
  return args.x.device().is_cuda() && cuda_gated_gemm(ctx, args);
}

bool gated_gemm_backward(const KernelContext& ctx, const GatedGemmBackwardArgs& args) {
  return args.x.device().is_cuda() && cuda_gated_gemm_backward(ctx, args);
}

}  // namespace megatron
