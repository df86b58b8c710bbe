#pragma once

#include <string>
#include <string_view>

#include "megatron/kernels/attention_dispatch.h"
#include "megatron/kernels/gemm_autotune.h"
#include "megatron/kernels/gemm_gelu.h"
#include "megatron/kernels/gemm_softmax_stats.h"
#include "megatron/kernels/gemm_swiglu.h"
#include "megatron/kernels/kernel_table.h"

namespace megatron {

const KernelTable& cpu_kernels();
const KernelTable& meta_kernels();  // every kernel does nothing: ops still checks shapes and allocates

// kernels/cuda, or kernels/none, which throws.
const KernelTable& cuda_kernels();
void autotune_cuda_gemms(const KernelContext& ctx, AutotuneMode mode);
std::string tuned_cuda_gemm_algos(const KernelContext& ctx);
void use_tuned_cuda_gemm_algos(const KernelContext& ctx, std::string_view tuned);
const AttentionDispatchLog& cuda_attention_log(const KernelContext& ctx);
bool cuda_gemm_swiglu(const KernelContext& ctx, const GemmSwigluArgs& args);
bool cuda_gemm_swiglu_backward(const KernelContext& ctx, const GemmSwigluBackwardArgs& args);
bool cuda_gemm_gelu(const KernelContext& ctx, const GemmGeluArgs& args);
bool cuda_gemm_gelu_backward(const KernelContext& ctx, const GemmGeluBackwardArgs& args);
bool cuda_gemm_softmax_stats(const KernelContext& ctx, const GemmSoftmaxStatsArgs& args);

}  // namespace megatron
