#include "megatron/base/error.h"
#include "megatron/kernels/backends.h"

namespace megatron {
namespace {

[[noreturn]] void reject() {
  throw ConfigError("this build has no CUDA kernels: build with MEGATRON_CUDA=1 where nvcc is installed");
}

}  // namespace

const KernelTable& cuda_kernels() { reject(); }
void measure_cuda_gemms(const KernelContext&, Measuring) { reject(); }
std::string cuda_gemm_choices(const KernelContext&) { reject(); }
void use_cuda_gemm_choices(const KernelContext&, std::string_view) { reject(); }
const AttentionNotes& cuda_attention_notes(const KernelContext&) { reject(); }
bool cuda_gated_gemm(const KernelContext&, const GatedGemmArgs&) { reject(); }
bool cuda_gated_gemm_backward(const KernelContext&, const GatedGemmBackwardArgs&) { reject(); }
bool cuda_gelu_gemm(const KernelContext&, const GeluGemmArgs&) { reject(); }
bool cuda_gelu_gemm_backward(const KernelContext&, const GeluGemmBackwardArgs&) { reject(); }
bool cuda_logits_gemm(const KernelContext&, const LogitsGemmArgs&) { reject(); }

}  // namespace megatron
