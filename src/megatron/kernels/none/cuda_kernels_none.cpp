#include "megatron/base/error.h"
#include "megatron/kernels/backends.h"

namespace megatron {
namespace {

[[noreturn]] void reject() {
  throw ConfigError("this build has no CUDA kernels: build with MEGATRON_CUDA=1 where nvcc is installed");
}

}  // namespace

const KernelTable& cuda_kernels() { reject(); }
void autotune_cuda_gemms(const KernelContext&, AutotuneMode) { reject(); }
std::string tuned_cuda_gemm_algos(const KernelContext&) { reject(); }
void use_tuned_cuda_gemm_algos(const KernelContext&, std::string_view) { reject(); }
const AttentionDispatchLog& cuda_attention_log(const KernelContext&) { reject(); }
bool cuda_gemm_swiglu(const KernelContext&, const GemmSwigluArgs&) { reject(); }
bool cuda_gemm_swiglu_backward(const KernelContext&, const GemmSwigluBackwardArgs&) { reject(); }
bool cuda_gemm_gelu(const KernelContext&, const GemmGeluArgs&) { reject(); }
bool cuda_gemm_gelu_backward(const KernelContext&, const GemmGeluBackwardArgs&) { reject(); }
bool cuda_gemm_softmax_stats(const KernelContext&, const GemmSoftmaxStatsArgs&) { reject(); }

}  // namespace megatron
