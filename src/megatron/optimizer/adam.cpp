#include "megatron/optimizer/adam.h"

#include <map>

namespace megatron {

Adam::Adam(RankContext& ctx, std::vector<ParameterSlice> slices, const AdamOptions& options)
    : Optimizer(ctx, std::move(slices), options.groups, options.masters),
      options_(options),
      first_(zeros(ctx, options.first)),
      second_(zeros(ctx, options.second)) {}

void Adam::step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate) {
  // By learning rate and factor of epsilon.
  std::map<std::pair<double, double>, std::vector<AdamTensor>> groups;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ParameterSlice& slice = slices_[i];
    groups[{lr_of(slice, rates), lr_scale(slice)}].push_back(
        {.parameter = slice.value,
         .master = masters_[i],
         .gradient = slice.gradient,
         .first = first_[i],
         .second = second_[i],
         .weight_decay = decay_of(slice, rates, options_.weight_decay),
         .remainder = remainders_[i]});
  }
  ++steps_;
  for (const auto& [key, tensors] : groups) {
    ctx.kernels->adam(ctx.kernel_context(), {.tensors = tensors,
                                             .lr = key.first,
                                             .beta1 = options_.beta1,
                                             .beta2 = options_.beta2,
                                             .epsilon = key.second * options_.epsilon,
                                             .step = steps_,
                                             .decoupled = options_.decoupled,
                                             .gradient_scale = gradient_scale,
                                             .gate = gate});
    if (ctx.tracer) trace_step(ctx, tensors);
  }
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

std::vector<OptimizerTensor> Adam::state(RankContext& ctx) const {
  std::vector<OptimizerTensor> list;
  append_masters(ctx, list);
  append(list, "exp_avg", first_);
  append(list, "exp_avg_sq", second_);
  return list;
}

}  // namespace megatron
