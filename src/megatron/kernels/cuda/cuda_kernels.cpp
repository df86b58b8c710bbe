#include "megatron/kernels/cuda/core/kernel_state.h"
#include "megatron/kernels/cuda/families.h"
#include "megatron/kernels/limits/launch_check.h"

namespace megatron {
namespace {

KernelTable make_families() {
  using namespace cuda;
  KernelTable table;
  for (auto add : {add_gemm_kernels,
                   add_gemm_swiglu_kernels,
                   add_gemm_softmax_stats_kernels,
                   add_grouped_gemm_kernels,
                   add_activation_kernels,
                   add_elementwise_kernels,
                   add_copy_kernels,
                   add_reduction_kernels,
                   add_random_kernels,
                   add_norm_kernels,
                   add_rope_kernels,
                   add_attention_kernels,
                   add_decode_kernels,
                   add_index_kernels,
                   add_argmax_kernels,
                   add_sample_kernels,
                   add_cross_entropy_kernels,
                   add_moe_kernels,
                   add_quantize_kernels,
                   add_quantize_grouped_kernels,
                   add_quantize_blocks_kernels,
                   add_optimizer_kernels,
                   add_causal_conv_kernels,
                   add_gated_norm_kernels,
                   add_ssd_kernels,
                   add_delta_rule_kernels,
                   add_channel_delta_kernels,
                   add_sinkhorn_kernels})
    add(table);
  return table;
}

template <class Args>
struct NamedKernel {
  const char* name = nullptr;
  Kernel<Args> run = nullptr;
};

const KernelTable& families() {
  static const KernelTable table = make_families();
  return table;
}

// The one kernel that takes these arguments.
template <class Args>
NamedKernel<Args> kernel_of() {
  NamedKernel<Args> found;
  KernelTable::visit(families(), [&](const char* name, const auto& kernel) {
    if constexpr (std::is_same_v<decltype(kernel), const Kernel<Args>&>) found = {name, kernel};
  });
  return found;
}

// What was not known before the run, such as lengths of documents, is refused here.
template <class Args>
void checked(const KernelContext& ctx, const Args& args) {
  static const NamedKernel<Args> kernel = kernel_of<Args>();
  const CudaProperties& gpu = static_cast<const CudaRuntime&>(ctx.stream.runtime()).properties();
  if (const std::optional<Refusal> refusal =
          refuse(args, {gpu.compute_capability, gpu.shared_memory_per_block}))
    fail("{}: {}", kernel.name, refusal->reason);
  kernel.run(ctx, args);
}

template <class Args>
void check([[maybe_unused]] Kernel<Args>& kernel) {
  if constexpr (HasLimits<Args>) kernel = &checked<Args>;
}
template <class Args>
void check(FusedKernel<Args>&) {}  // it says by itself what it does not take

KernelTable make_table() {
  KernelTable table = families();
  KernelTable::visit(table, [](const char*, auto& kernel) { check(kernel); });
  return table;
}

}  // namespace

const KernelTable& cuda_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace megatron
