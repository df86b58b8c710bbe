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
    half_masters_.emplace_back();
    if (value.dtype() == wide || masters == Masters::None) continue;
    if (masters == Masters::Half)
      half_masters_.back() = ScaledState(ctx, value.shape(), DType::F16);
    else if (masters == Masters::Split && value.dtype() == DType::BF16)
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
    if (half_masters_[i]) {
      Tensor wide = ctx.empty(slices_[i].value.shape(), DType::F32, MemoryTag::Workspace);
      ctx.kernels->copy(ctx.kernel_context(), {slices_[i].value, wide});
      half_masters_[i].write(ctx, wide);
    }
  }
}

std::vector<ParameterSlice> Optimizer::master_slices() const {
  std::vector<ParameterSlice> result = slices_;
  for (size_t i = 0; i < result.size(); ++i)
    if (masters_[i]) result[i].value = masters_[i];
  return result;
}

ChangeGroups Optimizer::change_groups() const {
  std::vector<Tensor> all;
  for (const ParameterSlice& slice : slices_) all.push_back(slice.value);
  for (const OptimizerTensor& entry : state()) append_changed(all, entry);
  return {std::move(all)};
}

void Optimizer::step_by_groups(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale,
                               const Tensor& gate, const std::function<void(size_t group)>& before) {
  before(0);
  step(ctx, rates, gradient_scale, gate);
}

void Optimizer::append_changed(std::vector<Tensor>& list, const OptimizerTensor& entry) {
  if (entry.tensor) list.push_back(entry.tensor);
  if (!entry.packed) return;
  const PackedValues& values = entry.packed->values;
  list.insert(list.end(), values.parts.begin(), values.parts.end());
  if (values.scale) list.push_back(values.scale);
}

void Optimizer::append_masters(std::vector<OptimizerTensor>& list) const {
  for (size_t i = 0; i < slices_.size(); ++i) {
    OptimizerTensor entry{"master", &slices_[i], masters_[i]};
    if (remainders_[i]) entry.packed = split_state(slices_[i].value, remainders_[i]);
    if (half_masters_[i]) entry.packed = half_masters_[i].packed();
    if (entry.tensor || entry.packed) list.push_back(std::move(entry));
  }
}

Tensor Optimizer::wide_value(RankContext& ctx, size_t i) const {
  const Tensor& value = slices_[i].value;
  const DType dtype = accumulation_dtype(value.dtype());
  if (masters_[i]) return masters_[i];
  if (half_masters_[i]) return half_masters_[i].read(ctx);
  if (value.dtype() == dtype) return value;
  Tensor wide = ctx.empty(value.shape(), dtype, MemoryTag::Workspace);
  if (remainders_[i])
    ctx.kernels->split_float(ctx.kernel_context(), {wide, value, remainders_[i], true});
  else
    ctx.kernels->copy(ctx.kernel_context(), {value, wide});
  return wide;
}

void Optimizer::set_wide(RankContext& ctx, size_t i, const Tensor& wide) {
  const Tensor& value = slices_[i].value;
  if (value.dtype() != wide.dtype()) ctx.kernels->copy(ctx.kernel_context(), {wide, value});
  if (remainders_[i]) ctx.kernels->split_float(ctx.kernel_context(), {wide, value, remainders_[i]});
  if (half_masters_[i]) half_masters_[i].write(ctx, wide);
}

void Optimizer::multiply(RankContext& ctx, const Parameter& parameter, const Tensor& factors) {
  const auto kernels = ctx.kernel_context();
  const Shape& shape = parameter.shard.local_shape;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ParameterSlice& slice = slices_[i];
    if (slice.parameter != &parameter) continue;
    const Tensor wide = wide_value(ctx, i), all = ctx.empty(shape, wide.dtype(), MemoryTag::Workspace);
    ctx.kernels->copy(kernels, {factors.expand(shape), all});
    const Tensor own =
        all.view({all.numel()}).slice(0, slice.begin, slice.begin + wide.numel()).view(wide.shape());
    ctx.kernels->binary(kernels, {Binary::Mul, wide, own, wide});
    set_wide(ctx, i, wide);
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
    const DType wide = accumulation_dtype(slice.value.dtype()), dtype = wide == DType::F32 ? narrow : wide;
    tensors.push_back(
        ScaledState::needed(dtype) ? Tensor() : ctx.zeros(slice.value.shape(), dtype, MemoryTag::Optimizer));
  }
  return tensors;
}

std::vector<ScaledState> Optimizer::scaled_zeros(RankContext& ctx, DType narrow) const {
  std::vector<ScaledState> states;
  for (const ParameterSlice& slice : slices_) {
    const bool scaled = ScaledState::needed(narrow) && accumulation_dtype(slice.value.dtype()) == DType::F32;
    states.push_back(scaled ? ScaledState(ctx, slice.value.shape(), narrow) : ScaledState());
  }
  return states;
}

void Optimizer::append(std::vector<OptimizerTensor>& list, std::string_view kind,
                       std::span<const Tensor> tensors, std::span<const ScaledState> scaled) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    OptimizerTensor entry{kind, &slices_[i], tensors[i]};
    if (!scaled.empty() && scaled[i]) entry.packed = scaled[i].packed();
    if (entry.tensor || entry.packed) list.push_back(std::move(entry));
  }
}

}  // namespace megatron
