#include "megatron/transformer/linear.h"

#include <optional>

#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/overlapped_linear.h"

namespace megatron {
namespace {

Weight get(RankContext& ctx, const std::unique_ptr<Parameter>& parameter) {
  return parameter ? parameter->get(ctx) : Weight{};
}

Tensor run_linear(RankContext& ctx, const Tensor& x, Parameter& weight, const Weight& bias) {
  if (weight.fp8) return ops::fp8_linear(ctx, x, weight.get(ctx), *weight.fp8, bias);
  return ops::linear(ctx, x, weight.get(ctx), bias);
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const std::string& name, int64_t in, int64_t out,
                                           const TensorParallel& tp, const LinearOptions& options)
    : tp_(tp),
      overlap_(!tp.sequence_parallel || (tp.overlap.on && options.overlap)),
      weight_(name + ".weight",
              options.split ? options.split({out, in})
                            : tp.split(name, {out, in}, 0, options.units, options.parts),
              options.initializer) {
  weight_.takes_int8 = options.takes_int8;
  if (!options.bias) return;
  bias_ = std::make_unique<Parameter>(
      name + ".bias",
      options.split ? options.split({out}) : tp.split(name, {out}, 0, options.units, options.parts),
      Initializer::constant(0));
}

// f(what the GEMM takes, whether it communicates beside it)
template <class F>
auto ColumnParallelLinear::with_input(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input,
                                      F&& f) {
  const TraceRange range(ctx.tracer, weight_.name.c_str());
  const bool overlap = overlap_ && !weight_.fp8, gathers = tp_.size() > 1 && !overlap;
  Tensor input = gathers ? enter_tensor_parallel(ctx, x, tp_) : x;
  std::optional<Rematerialize> scope;
  if (recompute_input)
    scope.emplace(ctx, input, [recompute_input, gathers, tp = tp_](RankContext& c) {
      return gathers ? enter_tensor_parallel(c, recompute_input(c), tp) : recompute_input(c);
    });
  return f(input, tp_.size() > 1 && overlap);
}

Tensor ColumnParallelLinear::forward(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input) {
  return with_input(ctx, x, recompute_input, [&](const Tensor& input, bool overlap) {
    if (overlap) return column_parallel_linear(ctx, input, weight_.get(ctx), get(ctx, bias_), tp_);
    return run_linear(ctx, input, weight_, get(ctx, bias_));
  });
}

ops::ActivatedLinear ColumnParallelLinear::forward_activated(RankContext& ctx,
                                                             const ops::ActivationOptions& options,
                                                             const Tensor& x,
                                                             const RecomputeFn& recompute_input) {
  return with_input(ctx, x, recompute_input, [&](const Tensor& input, bool overlap) -> ops::ActivatedLinear {
    if (overlap) return {column_parallel_linear(ctx, input, weight_.get(ctx), get(ctx, bias_), tp_), {}};
    if (weight_.fp8) return {run_linear(ctx, input, weight_, get(ctx, bias_)), {}};
    return ops::linear_activated(ctx, options, input, weight_.get(ctx), get(ctx, bias_));
  });
}

void ColumnParallelLinear::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  if (bias_) visitor(*bias_);
}

RowParallelLinear::RowParallelLinear(const std::string& name, int64_t in, int64_t out,
                                     const TensorParallel& tp, const LinearOptions& options)
    : tp_(tp),
      overlap_(tp.sequence_parallel && tp.overlap.on && options.overlap),
      weight_(name + ".weight", tp.split(name, {out, in}, 1, options.units), options.initializer) {
  weight_.takes_int8 = options.takes_int8;
  if (!options.bias) return;
  bias_ = std::make_unique<Parameter>(name + ".bias", ShardSpec::whole({out}), Initializer::constant(0));
  bias_->partial_over_tp = tp.splits_tokens();
}

Tensor RowParallelLinear::forward(RankContext& ctx, const Tensor& x) {
  const TraceRange range(ctx.tracer, weight_.name.c_str());
  if (tp_.size() == 1) return run_linear(ctx, x, weight_, get(ctx, bias_));
  return biased(ctx, overlap_ && !weight_.fp8
                         ? row_parallel_linear(ctx, x, weight_.get(ctx), tp_)
                         : leave_tensor_parallel(ctx, run_linear(ctx, x, weight_, {}), tp_));
}

Tensor RowParallelLinear::forward_activated(RankContext& ctx, const ops::ActivatedLinearOptions& options,
                                            ops::ActivatedLinear x) {
  const TraceRange range(ctx.tracer, weight_.name.c_str());
  const bool whole = tp_.size() == 1;
  Tensor sum = ops::activated_linear(ctx, options, x.y, weight_.get(ctx), whole ? get(ctx, bias_) : Weight{},
                                     x.active);
  x = {};  // what is not kept need not wait for the other ranks
  return whole ? sum : biased(ctx, leave_tensor_parallel(ctx, sum, tp_));
}

Tensor RowParallelLinear::biased(RankContext& ctx, const Tensor& sum) {
  return bias_ ? ops::add_bias(ctx, sum, bias_->get(ctx)) : sum;
}

void RowParallelLinear::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  if (bias_) visitor(*bias_);
}

}  // namespace megatron
