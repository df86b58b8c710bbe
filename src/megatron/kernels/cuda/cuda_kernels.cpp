#include "megatron/kernels/backends.h"
#include "megatron/kernels/cuda/families.h"

namespace megatron {
namespace {

KernelTable make_table() {
  using namespace cuda;
  KernelTable table;
  for (auto add : {add_gemm_kernels,        add_grouped_gemm_kernels, add_activation_kernels,
                   add_elementwise_kernels, add_copy_kernels,         add_reduction_kernels,
                   add_random_kernels,      add_norm_kernels,         add_rope_kernels,
                   add_attention_kernels,   add_index_kernels,        add_cross_entropy_kernels,
                   add_moe_kernels,         add_quantize_kernels,     add_quantize_blocks_kernels,
                   add_optimizer_kernels,   add_causal_conv_kernels,  add_gated_norm_kernels,
                   add_ssd_kernels,         add_delta_rule_kernels})
    add(table);
  return table;
}

}  // namespace

const KernelTable& cuda_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace megatron
