#include "megatron/optimizer/grad_norm.h"

namespace megatron {
namespace {

// Another rank counts the same elements.
bool counted_elsewhere(const Parameter& parameter, const ParallelContext& parallel) {
  Axis tensor = parameter.expert ? Axis::etp : Axis::tp;
  return parameter.tied_copy || (parameter.replicated_over_tp() && parallel.rank(tensor) != 0);
}

// Σ x² of the gradients of dense or of expert parameters.
Tensor sum_squares(RankContext& ctx, std::span<const ParameterSlice> slices, const ParallelContext& parallel,
                   bool expert) {
  std::vector<Tensor> gradients;
  for (const ParameterSlice& slice : slices)
    if (slice.parameter->expert == expert && !counted_elsewhere(*slice.parameter, parallel))
      gradients.push_back(slice.gradient);
  Tensor sum = ctx.zeros({1}, DType::F64);
  ctx.kernels->sum_squares(ctx.kernel_context(), {gradients, sum});
  for (const Tensor& gradient : gradients)
    ctx.trace("grad_norm", Phase::Other, 2 * static_cast<double>(gradient.numel()),
              static_cast<double>(gradient.bytes()));
  return sum;
}

}  // namespace

Tensor gradient_norm(RankContext& ctx, std::span<const ParameterSlice> slices,
                     const ParallelContext& parallel, bool sharded) {
  Tensor sum = sum_squares(ctx, slices, parallel, false), expert = sum_squares(ctx, slices, parallel, true);
  // One instance of a sharded model has every element once. Without shards, one copy of the dense part lies
  // on a tensor × pipeline group, one of the experts on their own.
  if (!sharded) {
    parallel.group(Axis::mp).all_reduce(sum).wait();
    parallel.group(Axis::etp_ep_pp).all_reduce(expert).wait();
  }
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, sum, expert, sum});
  if (sharded) parallel.group(Axis::dist_opt).all_reduce(sum).wait();
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
