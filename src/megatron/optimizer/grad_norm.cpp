#include "megatron/optimizer/grad_norm.h"

#include <algorithm>

namespace megatron {

namespace {

// Of the dense or of the experts' gradients, over the ranks that they are spread over.
Tensor sum_of_squares(RankContext& ctx, std::span<Parameter* const> parameters, bool experts,
                      const ProcessGroup& tensor, const ProcessGroup& spread) {
  std::vector<Tensor> gradients;
  for (const Parameter* parameter : parameters) {
    bool counted_elsewhere = parameter->tied_copy || (parameter->replicated_over_tp() && tensor.rank() != 0);
    if (parameter->trainable && parameter->expert == experts && !counted_elsewhere)
      gradients.push_back(parameter->sink.main_grad);
  }
  Tensor sum = ctx.zeros({1}, DType::F64);
  ctx.kernels->sum_squares(ctx.kernel_context(), {gradients, sum});
  for (const Tensor& gradient : gradients)
    ctx.trace("grad_norm", Phase::Other, 2 * static_cast<double>(gradient.numel()),
              static_cast<double>(gradient.bytes()));
  spread.all_reduce(sum).wait();
  return sum;
}

}  // namespace

Tensor gradient_norm(RankContext& ctx, std::span<Parameter* const> parameters, const ModelParallel& parallel,
                     const ProcessGroup& pipeline) {
  const ProcessGroup& tp = parallel.tensor.group;
  const ExpertParallel& expert = parallel.expert;
  Tensor sum = sum_of_squares(ctx, parameters, false, tp, tp);
  if (std::any_of(parameters.begin(), parameters.end(), [](const Parameter* p) { return p->expert; })) {
    Tensor of_experts = sum_of_squares(ctx, parameters, true, expert.tensor, expert.all);
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, sum, of_experts, sum});
  }
  pipeline.all_reduce(sum).wait();
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
