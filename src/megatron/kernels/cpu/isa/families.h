#pragma once

#include "megatron/kernels/kernel_table.h"

// Each family adds its kernels to the table of the instruction set it is compiled for (MEGATRON_ISA is v3 or
// v4).
namespace megatron::cpu::MEGATRON_ISA {

void add_copy_kernels(KernelTable&);
void add_elementwise_kernels(KernelTable&);
void add_unary_kernels(KernelTable&);
void add_reduction_kernels(KernelTable&);
void add_random_kernels(KernelTable&);
void add_gemm_kernels(KernelTable&);
void add_norm_kernels(KernelTable&);
void add_rope_kernels(KernelTable&);
void add_activation_kernels(KernelTable&);
void add_qkv_kernels(KernelTable&);
void add_attention_kernels(KernelTable&);
void add_index_kernels(KernelTable&);
void add_cross_entropy_kernels(KernelTable&);
void add_moe_kernels(KernelTable&);
void add_quantize_kernels(KernelTable&);
void add_causal_conv_kernels(KernelTable&);
void add_gated_norm_kernels(KernelTable&);
void add_ssd_kernels(KernelTable&);
void add_delta_rule_kernels(KernelTable&);
void add_channel_delta_kernels(KernelTable&);
void add_sinkhorn_kernels(KernelTable&);
void add_optimizer_kernels(KernelTable&);

}  // namespace megatron::cpu::MEGATRON_ISA
