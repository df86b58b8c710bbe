#include "megatron/transformer/linear.h"

#include <optional>

#include "megatron/parallel/tensor/linear_route.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

Weight get(RankContext& ctx, const std::unique_ptr<Parameter>& parameter) {
  return parameter ? parameter->get(ctx) : Weight{};
}

TensorParallel with_overlap(TensorParallel tp, const LinearOptions& options) {
  if (options.overlap) tp.overlap = *options.overlap;
  return tp;
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const std::string& name, int64_t in, int64_t out,
                                           const TensorParallel& tp, const LinearOptions& options)
    : tp_(with_overlap(tp, options)),
      route_(tp.size() > 1 && (!tp.sequence_parallel || tp_.overlap.on) ? column_route(tp_) : nullptr),
      weight_(name + ".weight",
              options.split ? options.split({out, in})
                            : tp.split(name, {out, in}, 0, options.units, options.parts),
              options.initializer) {
  weight_.quantizable = options.quantizable;
  if (!options.bias) return;
  bias_ = std::make_unique<Parameter>(
      name + ".bias",
      options.split ? options.split({out}) : tp.split(name, {out}, 0, options.units, options.parts),
      Initializer::constant(0));
}

ops::LinearResult ColumnParallelLinear::run(RankContext& ctx, const Tensor& x,
                                            const std::optional<ops::ActivationOptions>& activation,
                                            const RecomputeFn& recompute_input) {
  const TraceRange range(ctx.tracer, weight_.name.c_str());
  const bool gathers = tp_.size() > 1 && !route_;
  Tensor input = gathers ? enter_tensor_parallel(ctx, x, tp_) : x;
  std::optional<Rematerialize> scope;
  if (recompute_input)
    scope.emplace(ctx, input, [recompute_input, gathers, tp = tp_](RankContext& c) {
      return gathers ? enter_tensor_parallel(c, recompute_input(c), tp) : recompute_input(c);
    });
  return apply_linear(ctx, input, weight_,
                      {.bias = get(ctx, bias_), .route = route_, .output_activation = activation});
}

Tensor ColumnParallelLinear::forward(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input) {
  return run(ctx, x, {}, recompute_input).y;
}

ops::LinearResult ColumnParallelLinear::forward_activated(RankContext& ctx,
                                                          const ops::ActivationOptions& options,
                                                          const Tensor& x,
                                                          const RecomputeFn& recompute_input) {
  return run(ctx, x, options, recompute_input);
}

void ColumnParallelLinear::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  if (bias_) visitor(*bias_);
}

RowParallelLinear::RowParallelLinear(const std::string& name, int64_t in, int64_t out,
                                     const TensorParallel& tp, const LinearOptions& options)
    : tp_(with_overlap(tp, options)),
      route_(tp.splits_tokens() && tp_.overlap.on ? row_route(tp_) : nullptr),
      weight_(name + ".weight", tp.split(name, {out, in}, 1, options.units), options.initializer) {
  weight_.quantizable = options.quantizable;
  if (!options.bias) return;
  bias_ = std::make_unique<Parameter>(name + ".bias", ShardSpec::whole({out}), Initializer::constant(0));
  bias_->partial_over_tp = tp.splits_tokens();
}

Tensor RowParallelLinear::forward(RankContext& ctx, const Tensor& x) {
  const TraceRange range(ctx.tracer, weight_.name.c_str());
  return summed(ctx, apply_linear(ctx, x, weight_, call(ctx)).y);
}

Tensor RowParallelLinear::forward_activated(RankContext& ctx, const ops::ActivationOptions& options,
                                            bool keep_active, ops::LinearResult x) {
  const TraceRange range(ctx.tracer, weight_.name.c_str());
  ops::LinearCall activated = call(ctx);
  activated.input_activation = options;
  activated.keep_active = keep_active || fp8();
  activated.active = std::move(x.active);
  const Tensor y = apply_linear(ctx, x.y, weight_, std::move(activated)).y;
  x = {};  // what is not kept need not wait for the other ranks
  return summed(ctx, y);
}

ops::LinearCall RowParallelLinear::call(RankContext& ctx) const {
  return {.bias = tp_.size() == 1 ? get(ctx, bias_) : Weight{}, .route = route_};
}

Tensor RowParallelLinear::summed(RankContext& ctx, const Tensor& part) const {
  if (tp_.size() == 1) return part;
  const Tensor sum = route_ ? part : leave_tensor_parallel(ctx, part, tp_);
  return bias_ ? ops::add_bias(ctx, sum, bias_->get(ctx)) : sum;
}

void RowParallelLinear::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  if (bias_) visitor(*bias_);
}

}  // namespace megatron
