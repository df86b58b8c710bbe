#pragma once

#include <memory>

#include "megatron/device/cuda/cuda_runtime_impl.h"
#include "megatron/kernels/attention_dispatch.h"
#include "megatron/kernels/kernel_table.h"

namespace megatron::cuda {

// cuBLASLt's handle, and the plan of each GEMM shape.
class GemmPlans;
// cuDNN's handle and its built attention graphs; null where cuDNN cannot be used.
class CudnnAttention;

inline constexpr int64_t kArrivalCounters = 8192;

// What the kernels keep between calls. One per CudaRuntime, so one per rank.
struct KernelState {
  std::shared_ptr<GemmPlans> gemm;
  std::shared_ptr<CudnnAttention> attention;
  std::shared_ptr<uint32_t> arrivals;  // [kArrivalCounters] on the device, of core/last_block.cuh
  AttentionDispatchLog attention_log;
};

KernelState& kernel_state(const KernelContext& ctx);

std::shared_ptr<GemmPlans> make_gemm_plans();
std::shared_ptr<CudnnAttention> make_cudnn_attention();

// cuDNN's fused attention. Why it does not take these arguments, where nothing was done; "": it was.
std::string_view cudnn_attention(const KernelContext& ctx, const AttentionArgs& args);
std::string_view cudnn_attention_backward(const KernelContext& ctx, const AttentionBackwardArgs& args);

}  // namespace megatron::cuda
