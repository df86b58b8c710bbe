#include "megatron/optimizer/adam.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

namespace megatron {

Adam::Adam(RankContext& ctx, std::vector<ParameterSlice> slices, const AdamOptions& options)
    : Optimizer(ctx, std::move(slices), options.groups, options.masters),
      options_(options),
      first_(zeros(ctx, options.first)),
      second_(zeros(ctx, options.second)),
      scaled_first_(scaled_zeros(ctx, options.first)),
      scaled_second_(scaled_zeros(ctx, options.second)) {}

AdamTensor Adam::tensor_of(size_t i, const Rates& rates) const {
  return {.parameter = slices_[i].value,
          .master = masters_[i],
          .gradient = slices_[i].gradient,
          .first = first_[i],
          .second = second_[i],
          .weight_decay = decay_of(slices_[i], rates, options_.weight_decay),
          .remainder = remainders_[i]};
}

void Adam::step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate) {
  ++steps_;
  std::vector<size_t> all(slices_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  update_slices(ctx, all, rates, gradient_scale, gate);
}

// The largest slices come first, so that little is left to do behind the last wait.
std::vector<std::vector<size_t>> Adam::slice_groups() const {
  constexpr int64_t kGroups = 16;
  std::vector<size_t> order(slices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return slices_[i].value.numel(); });
  int64_t all = 0, taken = 0;
  for (const ParameterSlice& slice : slices_) all += slice.value.numel();
  std::vector<std::vector<size_t>> groups(1);
  for (const size_t i : order) {
    if (taken * kGroups >= all && !groups.back().empty()) {
      groups.emplace_back();
      taken = 0;
    }
    groups.back().push_back(i);
    taken += slices_[i].value.numel();
  }
  return groups;
}

ChangeGroups Adam::change_groups() const {
  const std::vector<OptimizerTensor> all = state();
  std::vector<std::vector<Tensor>> of_slice(slices_.size());
  for (size_t i = 0; i < slices_.size(); ++i) of_slice[i].push_back(slices_[i].value);
  for (const OptimizerTensor& entry : all)
    append_changed(of_slice[static_cast<size_t>(entry.slice - slices_.data())], entry);
  ChangeGroups groups;
  for (const std::vector<size_t>& slices : slice_groups()) {
    groups.emplace_back();
    for (const size_t i : slices)
      groups.back().insert(groups.back().end(), of_slice[i].begin(), of_slice[i].end());
  }
  return groups;
}

void Adam::step_by_groups(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale,
                          const Tensor& gate, const std::function<void(size_t group)>& before) {
  ++steps_;
  const std::vector<std::vector<size_t>> groups = slice_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    before(group);
    update_slices(ctx, groups[group], rates, gradient_scale, gate);
  }
}

void Adam::update_slices(RankContext& ctx, std::span<const size_t> slices, const Rates& rates,
                         const Tensor& gradient_scale, const Tensor& gate) const {
  std::map<Rate, std::vector<AdamTensor>> groups;
  for (const size_t i : slices) {
    const Rate rate{lr_of(slices_[i], rates), lr_scale(slices_[i]) * options_.epsilon};
    if (scaled(i))
      update_scaled(ctx, i, tensor_of(i, rates), rate, gradient_scale, gate);
    else
      groups[rate].push_back(tensor_of(i, rates));
  }
  for (const auto& [rate, tensors] : groups) update(ctx, tensors, rate, gradient_scale, gate);
}

void Adam::update(RankContext& ctx, std::span<const AdamTensor> tensors, const Rate& rate,
                  const Tensor& gradient_scale, const Tensor& gate) const {
  ctx.kernels->adam(ctx.kernel_context(), {.tensors = tensors,
                                           .lr = rate.lr,
                                           .beta1 = options_.beta1,
                                           .beta2 = options_.beta2,
                                           .epsilon = rate.epsilon,
                                           .step = steps_,
                                           .decoupled = options_.decoupled,
                                           .gradient_scale = gradient_scale,
                                           .gate = gate});
  if (ctx.tracer) trace_step(ctx, tensors);
}

// One tensor at a time, in fp32 copies. Behind a closed gate what was read is written again, which changes no
// value.
void Adam::update_scaled(RankContext& ctx, size_t i, AdamTensor tensor, const Rate& rate,
                         const Tensor& gradient_scale, const Tensor& gate) const {
  if (scaled_first_[i]) tensor.first = scaled_first_[i].read(ctx);
  if (scaled_second_[i]) tensor.second = scaled_second_[i].read(ctx);
  if (half_masters_[i]) tensor.master = half_masters_[i].read(ctx);
  update(ctx, {&tensor, 1}, rate, gradient_scale, gate);
  if (scaled_first_[i]) scaled_first_[i].write(ctx, tensor.first);
  if (scaled_second_[i]) scaled_second_[i].write(ctx, tensor.second);
  if (half_masters_[i]) half_masters_[i].write(ctx, tensor.master);
}

void Adam::trace_step(RankContext& ctx, std::span<const AdamTensor> tensors) {
  double elements = 0, bytes = 0;
  for (const AdamTensor& t : tensors) {
    elements += static_cast<double>(t.first.numel());
    bytes += static_cast<double>(t.gradient.bytes() + 2 * (t.first.bytes() + t.second.bytes()));
    // The copy that is updated is read and written; where there is a master, the parameter is written alone.
    bytes += static_cast<double>(t.master.defined() ? 2 * t.master.bytes() + t.parameter.bytes()
                                                    : 2 * t.parameter.bytes());
    if (t.remainder.defined()) bytes += 2 * static_cast<double>(t.remainder.bytes());
  }
  ctx.trace("adam", Phase::Other, 14 * elements, bytes);
}

std::vector<OptimizerTensor> Adam::state() const {
  std::vector<OptimizerTensor> list;
  append_masters(list);
  append(list, "exp_avg", first_, scaled_first_);
  append(list, "exp_avg_sq", second_, scaled_second_);
  return list;
}

}  // namespace megatron
