#include "megatron/kernels/tuning.h"

#include "megatron/kernels/backends.h"

namespace megatron {
namespace {

bool on_cuda(const KernelContext& ctx) { return ctx.stream.runtime().device().is_cuda(); }

}  // namespace

void measure_gemms(const KernelContext& ctx, Measuring how) {
  if (on_cuda(ctx)) measure_cuda_gemms(ctx, how);
}

std::string gemm_choices(const KernelContext& ctx) {
  return on_cuda(ctx) ? cuda_gemm_choices(ctx) : std::string();
}

void use_gemm_choices(const KernelContext& ctx, std::string_view choices) {
  if (on_cuda(ctx)) use_cuda_gemm_choices(ctx, choices);
}

}  // namespace megatron
