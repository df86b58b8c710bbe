#include "megatron/kernels/cuda/gemm/gemm.h"

#include <algorithm>

#include "megatron/kernels/cuda/core/kernel_state.h"
#include "megatron/kernels/cuda/families.h"
#include "megatron/kernels/cuda/gemm/gemm_few_rows.h"
#include "megatron/kernels/cuda/gemm/gemm_plans.h"
#include "megatron/kernels/cuda/gemm/gemm_skinny.h"
#include "megatron/kernels/cuda/gemm/gemm_small_weight.h"

namespace megatron::cuda {
namespace {

void gemm(const KernelContext& ctx, const GemmArgs& args) {
  if (args.c.numel() == 0) return;
  if (args.a.size(-1) == 0) {  // nothing to contract
    scale(ctx, args.c, args.beta);
    if (args.bias) add_bias(ctx, args.c, args.bias);
    return;
  }
  if (args.c.stride(-1) != 1 && args.c.size(-1) != 1) {
    // The transposed GEMM has unit stride in its last dimension; its bias would run along rows.
    gemm(ctx, {.a = args.b.transpose(-1, -2),
               .b = args.a.transpose(-1, -2),
               .c = args.c.transpose(-1, -2),
               .alpha = args.alpha,
               .beta = args.beta,
               .bias = {}});
    if (args.bias) add_bias(ctx, args.c, args.bias);
    return;
  }
  const bool some = args.a.size(-2) > kFewerRows;
  if ((some && skinny_gemm(ctx, args)) || few_rows_gemm(ctx, args)) return;
  if (args.b_scale && !args.a_scale) {
    require(small_weight_gemm(ctx, args), "gemm: {} · {} with scales of the weight alone is not built",
            args.a, args.b);
    return;
  }
  static_cast<CudaRuntime&>(ctx.stream.runtime()).bind();
  kernel_state(ctx).gemm->run(ctx, args);
}

// What cuBLASLt's GELU takes: narrow matrices with dense rows, each beginning where its loads do.
bool takes_gelu(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [first = *tensors.begin()](const Tensor* t) {
    return (t->dtype() == DType::BF16 || t->dtype() == DType::F16) && t->dtype() == first->dtype() &&
           t->rank() == 2 && t->stride(1) == 1 && t->stride(0) % 8 == 0 && t->numel() > 0 &&
           reinterpret_cast<uintptr_t>(t->raw()) % 16 == 0;
  });
}

bool gelu(const KernelContext& ctx, const GemmArgs& args, const Tensor& x, Gelu form) {
  if (!takes_gelu({&x, &args.c}) || args.a.size(1) == 0) return false;
  static_cast<CudaRuntime&>(ctx.stream.runtime()).bind();
  return kernel_state(ctx).gemm->run(ctx, args, x, form);
}

bool gemm_gelu(const KernelContext& ctx, const GemmGeluArgs& args) {
  return gelu(ctx, {.a = args.a, .b = args.b.transpose(0, 1), .c = args.y, .bias = args.bias}, args.x,
              Gelu::Value);
}

bool gemm_gelu_backward(const KernelContext& ctx, const GemmGeluBackwardArgs& args) {
  return gelu(ctx, {args.a, args.b, args.dx}, args.x, Gelu::Slope);
}

}  // namespace

std::shared_ptr<GemmPlans> make_gemm_plans() { return std::make_shared<GemmPlans>(); }

void add_gemm_kernels(KernelTable& table) {
  table.gemm = gemm;
  table.gemm_gelu = gemm_gelu;
  table.gemm_gelu_backward = gemm_gelu_backward;
  table.gemm_autotune = {
      .set_mode = [](const KernelContext& ctx, AutotuneMode mode) { kernel_state(ctx).gemm->autotune(mode); },
      .tuned = [](const KernelContext& ctx) { return kernel_state(ctx).gemm->tuned_algos(); },
      .use = [](const KernelContext& ctx, std::string_view tuned) { kernel_state(ctx).gemm->use(tuned); }};
}

}  // namespace megatron::cuda
