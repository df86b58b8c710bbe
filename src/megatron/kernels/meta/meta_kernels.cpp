#include "megatron/kernels/backends.h"
#include "megatron/kernels/cudnn_support.h"

namespace megatron {
namespace {

template <class Args>
void shapes_only(const KernelContext&, const Args&) {}

template <class Args>
void fill_in(Kernel<Args>& kernel) {
  kernel = &shapes_only<Args>;
}

// What a GPU takes for the time of the kernel, the only scratch memory of a size that counts. A plan does not
// know the device: for one without cuDNN it has too much.
void attention_backward(const KernelContext& ctx, const AttentionBackwardArgs& args) {
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
