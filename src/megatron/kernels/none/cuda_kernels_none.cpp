#include "megatron/base/error.h"
#include "megatron/kernels/backends.h"

namespace megatron {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("this build has no CUDA kernels: build with MEGATRON_CUDA=1 where nvcc is installed");
}

}  // namespace

const KernelTable& cuda_kernels() { refuse(); }
void measure_cuda_gemms(const KernelContext&, Measuring) { refuse(); }
std::string cuda_gemm_choices(const KernelContext&) { refuse(); }
void use_cuda_gemm_choices(const KernelContext&, std::string_view) { refuse(); }
const AttentionNotes& cuda_attention_notes(const KernelContext&) { refuse(); }
bool cuda_gated_gemm(const KernelContext&, const GatedGemmArgs&) { refuse(); }
bool cuda_gated_gemm_backward(const KernelContext&, const GatedGemmBackwardArgs&) { refuse(); }
bool cuda_gelu_gemm(const KernelContext&, const GeluGemmArgs&) { refuse(); }
bool cuda_gelu_gemm_backward(const KernelContext&, const GeluGemmBackwardArgs&) { refuse(); }
bool cuda_logits_gemm(const KernelContext&, const LogitsGemmArgs&) { refuse(); }

}  // namespace megatron
