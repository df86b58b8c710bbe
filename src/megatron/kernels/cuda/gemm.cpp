#include "megatron/kernels/cuda/gemm.h"

#include "megatron/kernels/backends.h"
#include "megatron/kernels/cuda/families.h"
#include "megatron/kernels/cuda/gemm_plans.h"
#include "megatron/kernels/cuda/kernel_state.h"

namespace megatron {
namespace cuda {
namespace {

void gemm(const KernelContext& ctx, const GemmArgs& args) {
  if (args.c.numel() == 0) return;
  if (args.a.size(-1) == 0) {  // nothing to contract
    scale(ctx, args.c, args.beta);
    if (args.bias) add_bias(ctx, args.c, args.bias);
    return;
  }
  if (args.c.stride(-1) != 1 && args.c.size(-1) != 1) {
    // The same product the other way round has a dense last dimension; its bias would run along rows.
    gemm(ctx, {.a = args.b.transpose(-1, -2),
               .b = args.a.transpose(-1, -2),
               .c = args.c.transpose(-1, -2),
               .alpha = args.alpha,
               .beta = args.beta,
               .bias = {}});
    if (args.bias) add_bias(ctx, args.c, args.bias);
    return;
  }
  static_cast<CudaRuntime&>(ctx.stream.runtime()).bind();
  kernel_state(ctx).gemm->run(ctx, args);
}

}  // namespace

std::shared_ptr<GemmPlans> make_gemm_plans() { return std::make_shared<GemmPlans>(); }

void add_gemm_kernels(KernelTable& table) { table.gemm = gemm; }

}  // namespace cuda

void measure_cuda_gemms(const KernelContext& ctx, bool on) { cuda::kernel_state(ctx).gemm->measure(on); }
std::string cuda_gemm_choices(const KernelContext& ctx) { return cuda::kernel_state(ctx).gemm->choices(); }
void use_cuda_gemm_choices(const KernelContext& ctx, std::string_view choices) {
  cuda::kernel_state(ctx).gemm->use(choices);
}

}  // namespace megatron
