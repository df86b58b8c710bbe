#include "megatron/autograd/rank_context.h"

#include <cstring>

namespace megatron {

RankContext::RankContext(Device device, int threads, int rank)
    : rank(rank),
      device(device),
      runtime(make_runtime(device)),
      allocator(std::make_shared<Allocator>(runtime)),
      stream(runtime),
      pool(threads),
      kernels(&kernels_for(device)) {}

bool RankContext::tracks(const Tensor& tensor) const {
  if (!tape || !tensor.grad_slot()) return false;
  require(tape->tracks(tensor),
          "the tensor {} belongs to another tape than the one being recorded; detach() it, or watch() it",
          tensor);
  return true;
}

Tensor RankContext::full(Shape shape, DType dtype, double value, MemoryTag tag) {
  Tensor result = empty(shape, dtype, tag);
  kernels->fill(kernel_context(), {result, value});
  return result;
}

Tensor RankContext::from_host(const void* data, Shape shape, DType dtype, MemoryTag tag) {
  Tensor result = empty(shape, dtype, tag);
  if (result.numel()) runtime->copy_from_host(result.raw(), data, result.bytes(), stream.native());
  return result;
}

void RankContext::to_host(const Tensor& tensor, void* data) {
  Tensor source = tensor.detach();
  if (!source.is_contiguous()) {
    Tensor copy = empty(source.shape(), source.dtype(), MemoryTag::Workspace);
    kernels->copy(kernel_context(), {source, copy});
    source = copy;
  }
  if (source.numel()) runtime->copy_to_host(data, source.raw(), source.bytes(), stream.native());
}

double RankContext::item(const Tensor& tensor) {
  require(tensor.numel() == 1, "item: {} has {} elements, not one", tensor, tensor.numel());
  Tensor wide = empty({1}, DType::F64, MemoryTag::Workspace);
  kernels->copy(kernel_context(), {tensor.detach().view({1}), wide});
  double value = 0;
  to_host(wide, &value);
  return value;
}

Saved::Saved(RankContext& ctx, const Tensor& tensor) {
  if (ctx.packer && tensor.defined()) packed_ = ctx.packer->pack(ctx, tensor.detach());
  if (!packed_) tensor_ = tensor.detach();
}

void GradAccumulator::contribute(RankContext& ctx) {
  has_value_ = true;
  if (on_contribution) on_contribution(ctx);
  if (--pending_uses_ == 0 && on_ready) on_ready(ctx);
}

}  // namespace megatron
