#include "megatron/optimizer/optimizer.h"

namespace megatron {

Optimizer::Optimizer(RankContext& ctx, std::vector<ParameterSlice> slices, ParameterGroups groups,
                     Masters masters)
    : slices_(std::move(slices)), groups_(std::move(groups)) {
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

double Optimizer::lr_scale(const ParameterSlice& slice) const {
  return groups_.lr_scale ? groups_.lr_scale(*slice.parameter) : 1;
}

double Optimizer::lr_of(const ParameterSlice& slice, const Rates& rates) const {
  const bool own = rates.decoupled_lr && groups_.decoupled && groups_.decoupled(*slice.parameter);
  return lr_scale(slice) * (own ? *rates.decoupled_lr : rates.lr);
}

double Optimizer::decay_of(const ParameterSlice& slice, const Rates& rates, double usual) const {
  const Parameter& parameter = *slice.parameter;
  const bool decays = groups_.decayed ? groups_.decayed(parameter) : parameter.decayed();
  return decays ? rates.weight_decay.value_or(usual) : 0;
}

void Optimizer::read_parameters(RankContext& ctx) {
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (masters_[i]) ctx.kernels->copy(ctx.kernel_context(), {slices_[i].value, masters_[i]});
    if (remainders_[i]) ctx.kernels->fill(ctx.kernel_context(), {remainders_[i], 0});
  }
}

std::vector<ParameterSlice> Optimizer::master_slices() const {
  std::vector<ParameterSlice> result = slices_;
  for (size_t i = 0; i < result.size(); ++i)
    if (masters_[i]) result[i].value = masters_[i];
  return result;
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
    if (entry.slice < slices_.data() || entry.slice >= slices_.data() + slices_.size()) continue;
    auto i = static_cast<size_t>(entry.slice - slices_.data());
    if (entry.kind == "master" && remainders_[i])
      ctx.kernels->split_float(ctx.kernel_context(), {entry.tensor, slices_[i].value, remainders_[i]});
  }
}

Tensor Optimizer::scaled_gradient(RankContext& ctx, size_t i, const Tensor& gradient_scale) const {
  const auto kernels = ctx.kernel_context();
  const Tensor& target = masters_[i] ? masters_[i] : slices_[i].value;
  Tensor gradient = ctx.empty(target.shape(), target.dtype(), MemoryTag::Workspace);
  ctx.kernels->copy(kernels, {slices_[i].gradient, gradient});
  if (!gradient_scale) return gradient;
  Tensor scale = ctx.empty({1}, target.dtype(), MemoryTag::Workspace);
  ctx.kernels->copy(kernels, {gradient_scale.view({1}), scale});
  ctx.kernels->binary(kernels, {Binary::Mul, gradient, scale.expand(gradient.shape()), gradient});
  return gradient;
}

void Optimizer::store(RankContext& ctx, const Tensor& fresh, const Tensor& target, const Tensor& gate) {
  if (gate)
    ctx.kernels->where(ctx.kernel_context(), {gate.expand(target.shape()), fresh, target, target});
  else
    ctx.kernels->copy(ctx.kernel_context(), {fresh, target});
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
