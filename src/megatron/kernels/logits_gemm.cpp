#include "megatron/kernels/logits_gemm.h"

#include "megatron/kernels/backends.h"

namespace megatron {

bool logits_gemm(const KernelContext& ctx, const LogitsGemmArgs& args) {
  return args.a.device().is_cuda() && cuda_logits_gemm(ctx, args);
}

}  // namespace megatron
