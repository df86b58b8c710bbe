#include "megatron/kernels/gemm_softmax_stats.h"

#include "megatron/kernels/backends.h"

namespace megatron {

bool gemm_softmax_stats(const KernelContext& ctx, const GemmSoftmaxStatsArgs& args) {
  return args.a.device().is_cuda() && cuda_gemm_softmax_stats(ctx, args);
}

}  // namespace megatron
