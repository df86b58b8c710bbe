#include "megatron/optimizer/adam.h"

#include <map>

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
  std::map<Rate, std::vector<AdamTensor>> groups;
  for (size_t i = 0; i < slices_.size(); ++i) {
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
