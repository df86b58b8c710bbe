#include "megatron/kernels/cpu/isa/families.h"
#include "megatron/kernels/cpu/isa_tables.h"

namespace megatron::cpu::MEGATRON_ISA {

KernelTable make_table() {
  KernelTable table;
  for (auto add :
       {add_copy_kernels,          add_elementwise_kernels, add_unary_kernels,     add_reduction_kernels,
        add_random_kernels,        add_gemm_kernels,        add_norm_kernels,      add_rope_kernels,
        add_activation_kernels,    add_qkv_kernels,         add_attention_kernels, add_index_kernels,
        add_cross_entropy_kernels, add_moe_kernels,         add_quantize_kernels,  add_optimizer_kernels,
        add_causal_conv_kernels,   add_gated_norm_kernels,  add_ssd_kernels,       add_delta_rule_kernels,
        add_channel_delta_kernels, add_sinkhorn_kernels})
    add(table);
  return table;
}

}  // namespace megatron::cpu::MEGATRON_ISA
