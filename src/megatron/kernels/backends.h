#pragma once

#include <string>
#include <string_view>

#include "megatron/kernels/attention_notes.h"
#include "megatron/kernels/gated_gemm.h"
#include "megatron/kernels/gelu_gemm.h"
#include "megatron/kernels/kernel_table.h"
#include "megatron/kernels/logits_gemm.h"
#include "megatron/kernels/tuning.h"

namespace megatron {

const KernelTable& cpu_kernels();
const KernelTable& meta_kernels();  // every kernel does nothing: ops still checks shapes and allocates

// kernels/cuda, or kernels/none, which throws.
const KernelTable& cuda_kernels();
void measure_cuda_gemms(const KernelContext& ctx, Measuring how);
std::string cuda_gemm_choices(const KernelContext& ctx);
void use_cuda_gemm_choices(const KernelContext& ctx, std::string_view choices);
const AttentionNotes& cuda_attention_notes(const KernelContext& ctx);
bool cuda_gated_gemm(const KernelContext& ctx, const GatedGemmArgs& args);
bool cuda_gated_gemm_backward(const KernelContext& ctx, const GatedGemmBackwardArgs& args);
bool cuda_gelu_gemm(const KernelContext& ctx, const GeluGemmArgs& args);
bool cuda_gelu_gemm_backward(const KernelContext& ctx, const GeluGemmBackwardArgs& args);
bool cuda_logits_gemm(const KernelContext& ctx, const LogitsGemmArgs& args);

}  // namespace megatron
