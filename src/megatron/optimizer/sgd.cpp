#include "megatron/optimizer/sgd.h"

namespace megatron {

Sgd::Sgd(RankContext& ctx, std::vector<ParameterSlice> slices, const SgdOptions& options)
    : Optimizer(ctx, std::move(slices)), options_(options) {
  if (options.momentum != 0) momenta_ = zeros(ctx);
}

void Sgd::step(RankContext& ctx, double lr, const Tensor& gradient_scale, const Tensor& gate) {
  auto kernels = ctx.kernel_context();
  // target = fresh where the gate is open.
  const auto store = [&](const Tensor& fresh, const Tensor& target) {
    if (gate)
      ctx.kernels->where(kernels, {gate.expand(target.shape()), fresh, target, target});
    else
      ctx.kernels->copy(kernels, {fresh, target});
  };
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ParameterSlice& slice = slices_[i];
    const Tensor& target = masters_[i] ? masters_[i] : slice.value;
    Tensor update = ctx.empty(target.shape(), target.dtype(), MemoryTag::Workspace);
    ctx.kernels->copy(kernels, {slice.gradient, update});
    if (gradient_scale) {
      Tensor scale = ctx.empty({1}, target.dtype(), MemoryTag::Workspace);
      ctx.kernels->copy(kernels, {gradient_scale.view({1}), scale});
      ctx.kernels->binary(kernels, {Binary::Mul, update, scale.expand(update.shape()), update});
    }
    if (decayed(slice) && options_.weight_decay != 0)
      ctx.kernels->axpby(kernels, {.a = update, .beta = options_.weight_decay, .b = target, .out = update});
    if (!momenta_.empty()) {
      // The first step starts from the gradient itself, and momenta are zero before it.
      ctx.kernels->axpby(kernels, {.a = update, .beta = options_.momentum, .b = momenta_[i], .out = update});
      store(update, momenta_[i]);
    }
    const double own = options_.lr_scale ? lr * options_.lr_scale(*slice.parameter) : lr;
    ctx.kernels->axpby(kernels, {.alpha = -own, .a = update, .b = target, .out = update});
    store(update, target);
    if (masters_[i]) ctx.kernels->copy(kernels, {masters_[i], slice.value});
    ctx.trace("sgd", Phase::Other, 6 * static_cast<double>(target.numel()),
              static_cast<double>(slice.gradient.bytes() + 4 * target.bytes()));
  }
  ++steps_;
}

std::vector<OptimizerTensor> Sgd::state(RankContext& ctx) const {
  std::vector<OptimizerTensor> list;
  append_masters(ctx, list);
  append(list, "momentum_buffer", momenta_);
  return list;
}

}  // namespace megatron
