#include "megatron/kernels/cudnn_support.h"
#include "megatron/kernels/kernel_table.h"
#include "megatron/kernels/limits/launch_check.h"

namespace megatron {
namespace {

// Nothing is computed; what stands for GPUs is asked whether they would.
template <class Args>
void shapes_only([[maybe_unused]] const KernelContext& ctx, [[maybe_unused]] const Args& args) {
  if constexpr (HasLimits<Args>)
    if (ctx.launches) ctx.launches->ask(args);
}

template <class Args>
void fill_in(Kernel<Args>& kernel) {
  kernel = &shapes_only<Args>;
}
template <class Args>
void fill_in(FusedKernel<Args>&) {}  // a plan takes the kernels one by one

// What a GPU takes for the time of the kernel, the only scratch memory of a size that counts. A plan does not
// know the device: for one without cuDNN it has too much.
void attention_backward(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  shapes_only(ctx, args);
  const size_t bytes = cudnn_scratch_bytes(args);
  if (bytes == 0) return;
  void* scratch = ctx.workspace.allocate(bytes, MemoryTag::Workspace);
  ctx.workspace.deallocate(scratch, bytes, MemoryTag::Workspace);
}

KernelTable make_table() {
  KernelTable table;
  KernelTable::visit(table, [](const char*, auto& kernel) { fill_in(kernel); });
  table.attention_backward = attention_backward;
  return table;
}

}  // namespace

const KernelTable& meta_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace megatron
