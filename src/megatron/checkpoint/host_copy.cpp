#include "megatron/checkpoint/host_copy.h"

#include "megatron/checkpoint/host_tensor.h"

namespace megatron {

namespace {
constexpr int64_t staging_elements = int64_t{16} << 20;
}

void copy_from_host(RankContext& ctx, const Tensor& source, const Tensor& target) {
  if (target.device().is_cpu()) {
    if (source.dtype() == target.dtype()) return copy_host(source, target);
    return ctx.kernels->copy(ctx.kernel_context(), {source, target});
  }
  std::vector<std::byte> staging;
  for (const Box& box : cut(source.shape(), staging_elements)) {
    const Tensor from = box_of(source, box);
    const void* data = from.raw();
    if (!from.is_contiguous()) {
      staging.resize(std::max(staging.size(), from.bytes()));
      copy_host(from, Tensor::wrap(staging.data(), from.shape(), from.dtype()));
      data = staging.data();
    }
    const Tensor moved = ctx.from_host(data, from.shape(), from.dtype(), MemoryTag::Workspace);
    ctx.kernels->copy(ctx.kernel_context(), {moved, box_of(target, box)});
  }
}

void queue_from_host(RankContext& ctx, const Tensor& source, const Tensor& target) {
  if (target.device().is_cpu() || !source.is_contiguous()) return copy_from_host(ctx, source, target);
  if (source.numel() == 0) return;
  const bool as_it_is = source.dtype() == target.dtype() && target.is_contiguous();
  const Tensor moved = as_it_is ? target : ctx.empty(source.shape(), source.dtype(), MemoryTag::Workspace);
  ctx.runtime->copy_from_host_async(moved.raw(), source.raw(), source.bytes(), ctx.stream.native());
  if (!as_it_is) ctx.kernels->copy(ctx.kernel_context(), {moved, target});
}

}  // namespace megatron
