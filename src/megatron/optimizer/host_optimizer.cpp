#include "megatron/optimizer/host_optimizer.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/device/host_memory.h"

namespace megatron {

HostOptimizer::HostOptimizer(RankContext& ctx, std::vector<ParameterSlice> slices, const Make& make)
    : Optimizer(ctx, {}),
      device_(std::move(slices)),
      host_(std::make_unique<RankContext>(ctx.device.is_meta() ? ctx.device : kCpu, ctx.pool.width(),
                                          ctx.rank)),
      memory_(ctx.device.is_meta() ? host_->allocator : make_host_allocator(ctx.runtime)) {
  for (const ParameterSlice& slice : device_) {
    ParameterSlice mirror = slice;
    mirror.value = host_tensor(slice.value);
    mirror.gradient = host_tensor(slice.gradient);
    mirrors_.push_back(std::move(mirror));
  }
  read_values(ctx);
  inner_ = make(*host_, mirrors_);
}

Tensor HostOptimizer::host_tensor(const Tensor& like) const {
  return Tensor::empty(memory_, like.shape(), like.dtype(), MemoryTag::Optimizer);
}

void HostOptimizer::bring(RankContext& ctx, const Tensor& from_device, const Tensor& to_host) {
  require(from_device.is_contiguous(), "optimizer offload: {} is not contiguous", from_device);
  if (from_device.numel() > 0)
    ctx.runtime->copy_to_host_async(to_host.raw(), from_device.raw(), from_device.bytes(),
                                    ctx.stream.native());
}

Tensor HostOptimizer::brought(RankContext& ctx, const Tensor& tensor) const {
  if (!tensor) return {};
  Tensor copy = host_tensor(tensor);
  if (!ctx.device.is_meta()) bring(ctx, tensor, copy);
  return copy;
}

void HostOptimizer::read_values(RankContext& ctx) {
  if (ctx.device.is_meta()) return;
  for (size_t i = 0; i < device_.size(); ++i) bring(ctx, device_[i].value, mirrors_[i].value);
  ctx.stream.synchronize();
}

void HostOptimizer::write_values(RankContext& ctx) {
  if (ctx.device.is_meta()) return;
  for (size_t i = 0; i < device_.size(); ++i)
    if (const Tensor& value = mirrors_[i].value; value.numel() > 0)
      ctx.runtime->copy_from_host_async(device_[i].value.raw(), value.raw(), value.bytes(),
                                        ctx.stream.native());
}

void HostOptimizer::step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale,
                         const Tensor& gate) {
  const Tensor scale = brought(ctx, gradient_scale), open = brought(ctx, gate);
  if (!ctx.device.is_meta()) {
    for (size_t i = 0; i < device_.size(); ++i) bring(ctx, device_[i].gradient, mirrors_[i].gradient);
    ctx.stream.synchronize();  // the values of the last step have gone by then, too
  }
  inner_->step(*host_, rates, scale, open);
  write_values(ctx);
  ++steps_;
}

std::vector<OptimizerTensor> HostOptimizer::state() const {
  std::vector<OptimizerTensor> list = inner_->state();
  for (OptimizerTensor& entry : list) {
    if (!entry.packed) continue;
    for (PackedState::Move* move : {&entry.packed->read, &entry.packed->write})
      *move = [inner = *move, host = host_.get()](RankContext& /*ctx*/, int64_t begin, const Tensor& wide) {
        inner(*host, begin, wide);
      };
  }
  return list;
}

ChangeGroups HostOptimizer::change_groups() const {
  ChangeGroups groups(1);
  for (const ParameterSlice& slice : device_) groups[0].push_back(slice.value);
  return groups;
}

// What split masters add to the parameters depends on these.
void HostOptimizer::begin_load(RankContext& ctx) {
  read_values(ctx);
  inner_->begin_load(*host_);
}

void HostOptimizer::multiply(RankContext& ctx, const Parameter& parameter, const Tensor& factors) {
  const auto is_of = [&](const ParameterSlice& slice) { return slice.parameter == &parameter; };
  if (std::none_of(device_.begin(), device_.end(), is_of)) return;  // the device's own part has it
  const Tensor own = brought(ctx, factors);
  if (!ctx.device.is_meta()) ctx.stream.synchronize();  // values that are under way to the device, too
  inner_->multiply(*host_, parameter, own);
  write_values(ctx);
}

void HostOptimizer::read_parameters(RankContext& ctx) {
  if (!inner_) return;
  read_values(ctx);
  inner_->read_parameters(*host_);
}

void HostOptimizer::set_steps(int64_t steps) {
  Optimizer::set_steps(steps);
  inner_->set_steps(steps);
}

SplitSlices split_slices(std::vector<ParameterSlice> slices, double fraction) {
  int64_t all = 0, taken = 0;
  for (const ParameterSlice& slice : slices) all += slice.value.numel();
  SplitSlices split;
  for (ParameterSlice& slice : slices) {
    const int64_t elements = slice.value.numel();
    const bool fits = static_cast<double>(taken + elements) <= fraction * static_cast<double>(all);
    if (fits) taken += elements;
    (fits ? split.on_host : split.on_device).push_back(std::move(slice));
  }
  return split;
}

}  // namespace megatron
