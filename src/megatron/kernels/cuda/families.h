#pragma once

#include "megatron/kernels/kernel_table.h"

// Each family adds its kernels to the table.
namespace megatron::cuda {

void add_gemm_kernels(KernelTable&);
void add_gemm_swiglu_kernels(KernelTable&);
void add_gemm_softmax_stats_kernels(KernelTable&);
void add_grouped_gemm_kernels(KernelTable&);
void add_activation_kernels(KernelTable&);
void add_elementwise_kernels(KernelTable&);
void add_copy_kernels(KernelTable&);
void add_reduction_kernels(KernelTable&);
void add_random_kernels(KernelTable&);
void add_norm_kernels(KernelTable&);
void add_rope_kernels(KernelTable&);
void add_attention_kernels(KernelTable&);
void add_decode_kernels(KernelTable&);
void add_index_kernels(KernelTable&);
void add_argmax_kernels(KernelTable&);
void add_sample_kernels(KernelTable&);
void add_cross_entropy_kernels(KernelTable&);
void add_moe_kernels(KernelTable&);
void add_quantize_kernels(KernelTable&);
void add_quantize_grouped_kernels(KernelTable&);
void add_quantize_blocks_kernels(KernelTable&);
void add_optimizer_kernels(KernelTable&);
void add_causal_conv_kernels(KernelTable&);
void add_gated_norm_kernels(KernelTable&);
void add_ssd_kernels(KernelTable&);
void add_delta_rule_kernels(KernelTable&);
void add_channel_delta_kernels(KernelTable&);
void add_sinkhorn_kernels(KernelTable&);

}  // namespace megatron::cuda
