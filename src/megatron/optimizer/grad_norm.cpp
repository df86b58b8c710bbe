#include "megatron/optimizer/grad_norm.h"

namespace megatron {

Tensor gradient_norm(RankContext& ctx, std::span<Parameter* const> parameters, const TensorParallel& tp,
                     std::span<const ProcessGroup> groups) {
  std::vector<Tensor> gradients;
  for (const Parameter* parameter : parameters) {
    bool counted_elsewhere = parameter->tied_copy || (parameter->replicated_over_tp() && tp.rank() != 0);
    if (parameter->trainable && !counted_elsewhere) gradients.push_back(parameter->sink.main_grad);
  }
  Tensor sum = ctx.zeros({1}, DType::F64);
  ctx.kernels->sum_squares(ctx.kernel_context(), {gradients, sum});
  for (const Tensor& gradient : gradients)
    ctx.trace("grad_norm", Phase::Other, 2 * static_cast<double>(gradient.numel()),
              static_cast<double>(gradient.bytes()));
  for (const ProcessGroup& group : groups) group.all_reduce(sum).wait();
  Tensor norm = ctx.empty({1}, DType::F64);
  ctx.kernels->unary(ctx.kernel_context(), {.kind = Unary::Sqrt, .x = sum, .y = norm});
  return norm;
}

Tensor clip_coefficient(RankContext& ctx, const Tensor& norm, double limit) {
  auto kernels = ctx.kernel_context();
  Tensor guard = ctx.full({1}, DType::F64, 1e-6), most = ctx.full({1}, DType::F64, 1.0);
  Tensor coefficient = ctx.full({1}, DType::F64, limit);
  ctx.kernels->binary(kernels, {Binary::Add, norm, guard, guard});
  ctx.kernels->binary(kernels, {Binary::Div, coefficient, guard, coefficient});
  ctx.kernels->binary(kernels, {Binary::Min, coefficient, most, coefficient});
  return coefficient;
}

}  // namespace megatron
