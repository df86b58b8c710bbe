#include "megatron/kernels/cuda/core/kernel_state.h"

namespace megatron::cuda {

KernelState& kernel_state(const KernelContext& ctx) {
  auto& runtime = static_cast<CudaRuntime&>(ctx.stream.runtime());
  return runtime.kernel_state<KernelState>([](CudaRuntime& device) {
    device.bind();
    auto state = std::make_shared<KernelState>();
    state->gemm = make_gemm_plans();
    state->attention = make_cudnn_attention();
    return state;
  });
}

}  // namespace megatron::cuda
