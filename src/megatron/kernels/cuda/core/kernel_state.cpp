#include "megatron/kernels/cuda/core/kernel_state.h"

namespace megatron::cuda {
namespace {

std::shared_ptr<uint32_t> make_arrivals() {
  constexpr size_t bytes = kArrivalCounters * sizeof(uint32_t);
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, bytes), "reserving GPU memory");
  std::shared_ptr<uint32_t> arrivals(static_cast<uint32_t*>(data),
                                     [](uint32_t* own) { static_cast<void>(cudaFree(own)); });
  check_cuda(cudaMemset(data, 0, bytes), "zeroing GPU memory");
  check_cuda(cudaStreamSynchronize(nullptr), "zeroing GPU memory");  // streams of ranks do not wait for it
  return arrivals;
}

}  // namespace

KernelState& kernel_state(const KernelContext& ctx) {
  auto& runtime = static_cast<CudaRuntime&>(ctx.stream.runtime());
  return runtime.kernel_state<KernelState>([](CudaRuntime& device) {
    device.bind();
    auto state = std::make_shared<KernelState>();
    state->gemm = make_gemm_plans();
    state->attention = make_cudnn_attention();
    state->arrivals = make_arrivals();
    return state;
  });
}

}  // namespace megatron::cuda
