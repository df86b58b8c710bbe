#include "megatron/transformer/norm.h"

#include "megatron/ops/elementwise.h"
#include "megatron/ops/norm.h"

namespace megatron {

Tensor Residual::sum(RankContext& ctx) const {
  return update ? ops::add(ctx, hidden, ops::cast(ctx, update, hidden.dtype())) : hidden;
}

Norm::Norm(const std::string& name, int64_t size, const ModelConfig& config, const TensorParallel& tp)
    : kind_(config.normalization == Normalization::rms_norm ? NormKind::Rms : NormKind::Layer),
      epsilon_(config.layernorm_epsilon),
      zero_centered_(config.layernorm_zero_centered_gamma),
      weight_(name + ".weight", ShardSpec::whole({size}), Initializer::constant(zero_centered_ ? 0 : 1)) {
  weight_.partial_over_tp = tp.splits_tokens();
  if (kind_ == NormKind::Rms) return;
  bias_ = std::make_unique<Parameter>(name + ".bias", ShardSpec::whole({size}), Initializer::constant(0));
  bias_->partial_over_tp = tp.splits_tokens();
}

Tensor Norm::forward(RankContext& ctx, const Tensor& x) {
  Residual residual{x, {}};
  return forward(ctx, residual);
}

Tensor Norm::forward(RankContext& ctx, Residual& residual) {
  const TraceRange range(ctx.tracer, weight_.name.c_str());
  Weight bias = bias_ ? bias_->get(ctx) : Weight{};
  ops::NormOptions options{.kind = kind_, .epsilon = epsilon_, .zero_centered = zero_centered_};
  const Weight weight = weight_.get(ctx);
  const auto shown = [&](const Tensor& y) {
    ctx.show(weight_.name, "output0", y);
    return y;
  };
  if (residual.hidden.dtype() != weight.value.dtype()) {  // a stream in fp32: what is normed is rounded
    residual = {residual.sum(ctx), {}};
    ctx.show(weight_.name, "input0", residual.hidden);
    return shown(
        ops::norm(ctx, ops::cast(ctx, residual.hidden, weight.value.dtype()), weight, bias, options));
  }
  if (!residual.update) {
    ctx.show(weight_.name, "input0", residual.hidden);
    return shown(ops::norm(ctx, residual.hidden, weight, bias, options));
  }
  auto [y, sum] = ops::norm_with_residual(ctx, residual.hidden, residual.update, weight, bias, options);
  residual = {sum, {}};
  ctx.show(weight_.name, "input0", sum);
  return shown(y);
}

Tensor Norm::forward(RankContext& ctx, Residual& residual, const ElasticWidths* widths) {
  if (!widths) return forward(ctx, residual);
  residual = {residual.sum(ctx), {}};
  return within(ctx, forward(ctx, within(ctx, residual.hidden, widths->stream.in)), widths->stream.out);
}

void Norm::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  if (bias_) visitor(*bias_);
}

}  // namespace megatron
