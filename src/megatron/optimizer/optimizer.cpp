#include "megatron/optimizer/optimizer.h"

namespace megatron {

Optimizer::Optimizer(RankContext& ctx, std::vector<ParameterSlice> slices, Masters masters)
    : slices_(std::move(slices)) {
  for (const ParameterSlice& slice : slices_) {
    const Tensor& value = slice.value;
    DType wide = accumulation_dtype(value.dtype());
    masters_.emplace_back();
    remainders_.emplace_back();
    if (value.dtype() == wide) continue;
    if (masters == Masters::Split && value.dtype() == DType::BF16)
      remainders_.back() = ctx.empty(value.shape(), DType::I16, MemoryTag::Optimizer);
    else
      masters_.back() = ctx.empty(value.shape(), wide, MemoryTag::Optimizer);
  }
  read_parameters(ctx);
}

void Optimizer::read_parameters(RankContext& ctx) {
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (masters_[i]) ctx.kernels->copy(ctx.kernel_context(), {slices_[i].value, masters_[i]});
    if (remainders_[i]) ctx.kernels->fill(ctx.kernel_context(), {remainders_[i], 0});
  }
}

void Optimizer::append_masters(RankContext& ctx, std::vector<OptimizerTensor>& list) const {
  for (size_t i = 0; i < slices_.size(); ++i) {
    Tensor master = masters_[i];
    if (remainders_[i]) {
      master = ctx.empty(slices_[i].value.shape(), DType::F32, MemoryTag::Workspace);
      ctx.kernels->split_float(ctx.kernel_context(), {master, slices_[i].value, remainders_[i], true});
    }
    if (master) list.push_back({"master", &slices_[i], master});
  }
}

void Optimizer::take_masters(RankContext& ctx, std::span<const OptimizerTensor> state) {
  for (const OptimizerTensor& entry : state) {
    auto i = static_cast<size_t>(entry.slice - slices_.data());
    if (entry.kind == "master" && remainders_[i])
      ctx.kernels->split_float(ctx.kernel_context(), {entry.tensor, slices_[i].value, remainders_[i]});
  }
}

std::vector<Tensor> Optimizer::zeros(RankContext& ctx, DType narrow) const {
  std::vector<Tensor> tensors;
  for (const ParameterSlice& slice : slices_) {
    DType wide = accumulation_dtype(slice.value.dtype());
    tensors.push_back(
        ctx.zeros(slice.value.shape(), wide == DType::F32 ? narrow : wide, MemoryTag::Optimizer));
  }
  return tensors;
}

void Optimizer::append(std::vector<OptimizerTensor>& list, std::string_view kind,
                       std::span<const Tensor> tensors) const {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]) list.push_back({kind, &slices_[i], tensors[i]});
}

}  // namespace megatron
