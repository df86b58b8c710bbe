#include "megatron/kernels/cuda/kernel_state.h"

// Built where cuDNN or the headers of its frontend are not found: our own kernels do all.
namespace megatron::cuda {

class CudnnAttention {};

std::shared_ptr<CudnnAttention> make_cudnn_attention() { return nullptr; }
bool cudnn_attention(const KernelContext&, const AttentionArgs&) { return false; }
bool cudnn_attention_backward(const KernelContext&, const AttentionBackwardArgs&) { return false; }

}  // namespace megatron::cuda
