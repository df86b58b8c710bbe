#include "megatron/base/error.h"
#include "megatron/kernels/backends.h"
#include "megatron/kernels/cuda/families.h"

namespace megatron {
namespace {

// Configurations with such layers are refused on a GPU; this is for programs that call the ops themselves.
template <class Args>
void not_built(const KernelContext&, const Args&) {
  throw ConfigError(
      "convolutions, scans and gated norms of Mamba and delta nets run on the CPU alone so far");
}

template <class... Args>
void leave_out(Kernel<Args>&... kernels) {
  ((kernels = &not_built<Args>), ...);
}

KernelTable make_table() {
  using namespace cuda;
  KernelTable table;
  for (auto add : {add_gemm_kernels, add_grouped_gemm_kernels, add_activation_kernels,
                   add_elementwise_kernels, add_copy_kernels, add_reduction_kernels, add_random_kernels,
                   add_norm_kernels, add_rope_kernels, add_attention_kernels, add_index_kernels,
                   add_cross_entropy_kernels, add_moe_kernels, add_quantize_kernels, add_optimizer_kernels})
    add(table);
  leave_out(table.causal_conv, table.causal_conv_backward, table.gated_norm_sums, table.gated_norm,
            table.gated_norm_backward, table.ssd, table.ssd_backward, table.delta_rule,
            table.delta_rule_backward);
  return table;
}

}  // namespace

const KernelTable& cuda_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace megatron
