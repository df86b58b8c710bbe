#include "megatron/kernels/backends.h"

namespace megatron {
namespace {

template <class Args>
void shapes_only(const KernelContext&, const Args&) {}

template <class Args>
void fill_in(Kernel<Args>& kernel) {
  kernel = &shapes_only<Args>;
}

KernelTable make_table() {
  KernelTable table;
  KernelTable::visit(table, [](const char*, auto& kernel) { fill_in(kernel); });
  return table;
}

}  // namespace

const KernelTable& meta_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace megatron
