#include "megatron/optimizer/lion.h"

namespace megatron {
namespace {

// 1, −1, or 0 where x is 0 or NaN.
Tensor sign(RankContext& ctx, const Tensor& x) {
  const auto kernels = ctx.kernel_context();
  const Tensor zero = ctx.zeros({1}, x.dtype(), MemoryTag::Workspace);
  const Tensor none = zero.expand(x.shape());
  Tensor side = ctx.empty(x.shape(), DType::Bool, MemoryTag::Workspace);
  Tensor above = ctx.empty(x.shape(), x.dtype(), MemoryTag::Workspace),
         below = ctx.empty(x.shape(), x.dtype(), MemoryTag::Workspace);
  ctx.kernels->compare(kernels, {Comparison::Less, none, x, side});
  ctx.kernels->copy(kernels, {side, above});
  ctx.kernels->compare(kernels, {Comparison::Less, x, none, side});
  ctx.kernels->copy(kernels, {side, below});
  ctx.kernels->binary(kernels, {Binary::Sub, above, below, above});
  return above;
}

}  // namespace

Lion::Lion(RankContext& ctx, std::vector<ParameterSlice> slices, const LionOptions& options)
    : Optimizer(ctx, std::move(slices), options.groups), options_(options), momenta_(zeros(ctx)) {}

void Lion::step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate) {
  const auto kernels = ctx.kernel_context();
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ParameterSlice& slice = slices_[i];
    const Tensor& target = masters_[i] ? masters_[i] : slice.value;
    const Tensor gradient = scaled_gradient(ctx, i, gradient_scale);
    Tensor mixed = ctx.empty(target.shape(), target.dtype(), MemoryTag::Workspace);
    const auto mix = [&](double beta) {
      ctx.kernels->axpby(kernels,
                         {.alpha = 1 - beta, .a = gradient, .beta = beta, .b = momenta_[i], .out = mixed});
    };
    mix(options_.beta1);
    Tensor update = sign(ctx, mixed);
    mix(options_.beta2);
    store(ctx, mixed, momenta_[i], gate);
    const double lr = lr_of(slice, rates), decay = decay_of(slice, rates, options_.weight_decay);
    ctx.kernels->axpby(kernels,
                       {.alpha = -lr, .a = update, .beta = 1 - lr * decay, .b = target, .out = update});
    store(ctx, update, target, gate);
    if (masters_[i]) ctx.kernels->copy(kernels, {masters_[i], slice.value});
    ctx.trace("lion", Phase::Other, 9 * static_cast<double>(target.numel()),
              static_cast<double>(slice.gradient.bytes() + 12 * target.bytes()));
  }
  ++steps_;
}

std::vector<OptimizerTensor> Lion::state() const {
  std::vector<OptimizerTensor> list;
  append_masters(list);
  append(list, "exp_avg", momenta_);
  return list;
}

}  // namespace megatron
