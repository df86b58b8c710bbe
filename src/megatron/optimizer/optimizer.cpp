#include "megatron/optimizer/optimizer.h"

namespace megatron {

Optimizer::Optimizer(RankContext& ctx, std::vector<ParameterSlice> slices) : slices_(std::move(slices)) {
  for (const ParameterSlice& slice : slices_) {
    const Tensor& value = slice.value;
    DType wide = accumulation_dtype(value.dtype());
    masters_.emplace_back();
    if (value.dtype() == wide) continue;
    masters_.back() = ctx.empty(value.shape(), wide, MemoryTag::Optimizer);
  }
  read_parameters(ctx);
}

void Optimizer::read_parameters(RankContext& ctx) {
  for (size_t i = 0; i < slices_.size(); ++i)
    if (masters_[i]) ctx.kernels->copy(ctx.kernel_context(), {slices_[i].value, masters_[i]});
}

std::vector<Tensor> Optimizer::zeros(RankContext& ctx) const {
  std::vector<Tensor> tensors;
  for (const ParameterSlice& slice : slices_)
    tensors.push_back(
        ctx.zeros(slice.value.shape(), accumulation_dtype(slice.value.dtype()), MemoryTag::Optimizer));
  return tensors;
}

void Optimizer::append(std::vector<OptimizerTensor>& list, std::string_view kind,
                       std::span<const Tensor> tensors) const {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]) list.push_back({kind, &slices_[i], tensors[i]});
}

}  // namespace megatron
