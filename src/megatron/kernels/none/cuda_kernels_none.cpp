#include "megatron/base/error.h"
#include "megatron/kernels/backends.h"

namespace megatron {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("this build has no CUDA kernels: build with MEGATRON_CUDA=1 where nvcc is installed");
}

}  // namespace

const KernelTable& cuda_kernels() { refuse(); }
void autotune_cuda_gemms(const KernelContext&, AutotuneMode) { refuse(); }
std::string tuned_cuda_gemm_algos(const KernelContext&) { refuse(); }
void use_tuned_cuda_gemm_algos(const KernelContext&, std::string_view) { refuse(); }
const AttentionDispatchLog& cuda_attention_log(const KernelContext&) { refuse(); }
bool cuda_gemm_swiglu(const KernelContext&, const GemmSwigluArgs&) { refuse(); }
bool cuda_gemm_swiglu_backward(const KernelContext&, const GemmSwigluBackwardArgs&) { refuse(); }
bool cuda_gemm_gelu(const KernelContext&, const GemmGeluArgs&) { refuse(); }
bool cuda_gemm_gelu_backward(const KernelContext&, const GemmGeluBackwardArgs&) { refuse(); }
bool cuda_gemm_softmax_stats(const KernelContext&, const GemmSoftmaxStatsArgs&) { refuse(); }

}  // namespace megatron
