#include "megatron/optimizer/sgd.h"

namespace megatron {

Sgd::Sgd(RankContext& ctx, std::vector<ParameterSlice> slices, const SgdOptions& options)
    : Optimizer(ctx, std::move(slices), options.groups), options_(options) {
  if (options.momentum != 0) momenta_ = zeros(ctx);
}

void Sgd::step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate) {
  auto kernels = ctx.kernel_context();
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ParameterSlice& slice = slices_[i];
    const Tensor& target = masters_[i] ? masters_[i] : slice.value;
    Tensor update = scaled_gradient(ctx, i, gradient_scale);
    if (const double decay = decay_of(slice, rates, options_.weight_decay); decay != 0)
      ctx.kernels->axpby(kernels, {.a = update, .beta = decay, .b = target, .out = update});
    if (!momenta_.empty()) {
      // The first step starts from the gradient itself, and momenta are zero before it.
      ctx.kernels->axpby(kernels, {.a = update, .beta = options_.momentum, .b = momenta_[i], .out = update});
      store(ctx, update, momenta_[i], gate);
    }
    ctx.kernels->axpby(kernels, {.alpha = -lr_of(slice, rates), .a = update, .b = target, .out = update});
    store(ctx, update, target, gate);
    if (masters_[i]) ctx.kernels->copy(kernels, {masters_[i], slice.value});
    ctx.trace("sgd", Phase::Other, 6 * static_cast<double>(target.numel()),
              static_cast<double>(slice.gradient.bytes() + 4 * target.bytes()));
  }
  ++steps_;
}

std::vector<OptimizerTensor> Sgd::state() const {
  std::vector<OptimizerTensor> list;
  append_masters(list);
  append(list, "momentum_buffer", momenta_);
  return list;
}

}  // namespace megatron
