#include "megatron/kernels/gemm_autotune.h"

#include "megatron/kernels/backends.h"

namespace megatron {
namespace {

bool on_cuda(const KernelContext& ctx) { return ctx.stream.runtime().device().is_cuda(); }

}  // namespace

void autotune_gemms(const KernelContext& ctx, AutotuneMode mode) {
  if (on_cuda(ctx)) autotune_cuda_gemms(ctx, mode);
}

std::string tuned_gemm_algos(const KernelContext& ctx) {
  return on_cuda(ctx) ? tuned_cuda_gemm_algos(ctx) : std::string();
}

void use_tuned_gemm_algos(const KernelContext& ctx, std::string_view tuned) {
  if (on_cuda(ctx)) use_tuned_cuda_gemm_algos(ctx, tuned);
}

}  // namespace megatron
