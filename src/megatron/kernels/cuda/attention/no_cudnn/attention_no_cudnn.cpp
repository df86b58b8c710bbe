#include "megatron/kernels/cuda/core/kernel_state.h"

// Built where cuDNN or the headers of its frontend are not found: our own kernels do all.
namespace megatron::cuda {

class CudnnAttention {};

constexpr std::string_view kWithout = "this build has no cuDNN";

std::shared_ptr<CudnnAttention> make_cudnn_attention() { return nullptr; }
std::string_view cudnn_attention(const KernelContext&, const AttentionArgs&) { return kWithout; }
std::string_view cudnn_attention_backward(const KernelContext&, const AttentionBackwardArgs&) {
  return kWithout;
}

}  // namespace megatron::cuda
