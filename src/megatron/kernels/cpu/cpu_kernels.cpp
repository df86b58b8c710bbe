#include "megatron/kernels/backends.h"
#include "megatron/kernels/cpu/isa_tables.h"

namespace megatron {
namespace {

KernelTable make_table() {
  KernelTable table;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd")) {
    using namespace cpu::v4;
    for (auto add : {add_elementwise_kernels, add_reduction_kernels, add_random_kernels, add_gemm_kernels,
                     add_norm_kernels, add_rope_kernels, add_activation_kernels, add_qkv_kernels,
                     add_attention_kernels, add_index_kernels, add_cross_entropy_kernels, add_moe_kernels,
                     add_quantize_kernels, add_optimizer_kernels})
      add(table);
  } else {
    using namespace cpu::v3;
    for (auto add : {add_elementwise_kernels, add_reduction_kernels, add_random_kernels, add_gemm_kernels,
                     add_norm_kernels, add_rope_kernels, add_activation_kernels, add_qkv_kernels,
                     add_attention_kernels, add_index_kernels, add_cross_entropy_kernels, add_moe_kernels,
                     add_quantize_kernels, add_optimizer_kernels})
      add(table);
  }
  return table;
}

}  // namespace

const KernelTable& cpu_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace megatron
