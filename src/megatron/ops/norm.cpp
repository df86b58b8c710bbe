#include "megatron/ops/norm.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class NormNode final : public Node {
 public:
  NormNode(RankContext& ctx, const NormArgs& forward, const Tensor& x, const Tensor& residual,
           const Weight& weight, const Weight& bias)
      : kind_(forward.kind),
        zero_centered_(forward.zero_centered),
        input_(ctx, residual.defined() ? forward.sum : forward.x),
        mean_(forward.mean),
        rstd_(forward.rstd),
        has_residual_(residual.defined()),
        x_slot_(x.grad_slot()),
        residual_slot_(residual.defined() ? residual.grad_slot() : GradSlot{}),
        weight_(weight),
        bias_(bias) {
    if (weight_.accumulator) weight_.accumulator->expect_use();
    if (bias_.accumulator) bias_.accumulator->expect_use();
  }
  const char* name() const override { return "norm"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output(0));
    Tensor input = input_.get(ctx);
    Tensor dsum;
    if (has_residual_) dsum = tape.take_grad(output(1));
    if (!dy) dy = ctx.zeros(input.shape(), input.dtype());
    NormBackwardArgs args{.kind = kind_,
                          .zero_centered = zero_centered_,
                          .dy = dy,
                          .dsum = dsum,
                          .x = input,
                          .weight = weight_.value,
                          .mean = mean_,
                          .rstd = rstd_};
    if (x_slot_ || residual_slot_) args.dx = ctx.empty(input.shape(), input.dtype());
    add_weights(ctx, args);
    ctx.kernels->norm_backward(ctx.kernel_context(), args);
    trace(ctx, "norm", Phase::BackwardData, 12.0 * static_cast<double>(input.numel()),
          {&dy, &dsum, &input, &args.dx});
    for (const Weight* w : {&weight_, &bias_})
      if (w->accumulator) w->accumulator->contribute(ctx);
    tape.add_grad(ctx, x_slot_, args.dx);
    tape.add_grad(ctx, residual_slot_, args.dx);
    input_.reset();
  }

 private:
  // Both gradients are added to what is there, or both start; where they differ, the fresh one starts at
  // zero.
  void add_weights(RankContext& ctx, NormBackwardArgs& args) {
    if (weight_.accumulator) args.dweight = weight_.accumulator->target(ctx);
    if (bias_.accumulator) args.dbias = bias_.accumulator->target(ctx);
    bool weight_started = weight_.accumulator && weight_.accumulator->has_value();
    bool bias_started = bias_.accumulator && bias_.accumulator->has_value();
    args.accumulate = weight_started || bias_started;
    if (!args.accumulate) return;
    if (weight_.accumulator && !weight_started) ctx.kernels->fill(ctx.kernel_context(), {args.dweight, 0});
    if (bias_.accumulator && !bias_started) ctx.kernels->fill(ctx.kernel_context(), {args.dbias, 0});
  }

  NormKind kind_;
  bool zero_centered_;
  Saved input_;
  Tensor mean_, rstd_;
  bool has_residual_;
  GradSlot x_slot_, residual_slot_;
  Weight weight_, bias_;
};

NormWithSum run(RankContext& ctx, const Tensor& x, const Tensor& residual, const Weight& weight,
                const Weight& bias, const NormOptions& options) {
  check_input(ctx, "norm", "x", x);
  check_floating("norm", "x", x);
  require(x.rank() >= 1, "norm: x {} has no dimension to normalise over", x);
  int64_t hidden = x.size(-1);
  check_vector(ctx, "norm", "weight", weight.value, hidden, x.dtype());
  check_vector(ctx, "norm", "bias", bias.value, hidden, x.dtype());
  require(!bias.defined() || options.kind == NormKind::Layer,
          "norm: RMSNorm has no bias; use LayerNorm or leave the bias out");
  require(!bias.defined() || weight.defined(), "norm: a bias without a weight is not supported");
  if (residual.defined()) {
    check_input(ctx, "norm", "residual", residual);
    check_shape("norm", "residual", residual, x.shape());
    check_dtype("norm", "residual", residual, x.dtype());
  }

  Shape rows = x.shape();
  rows.erase(rows.rank() - 1);
  DType statistics = accumulation_dtype(x.dtype());
  NormArgs args{.kind = options.kind,
                .epsilon = options.epsilon,
                .zero_centered = options.zero_centered,
                .x = detach_contiguous(ctx, x),
                .residual = residual.defined() ? detach_contiguous(ctx, residual) : Tensor{},
                .weight = weight.value,
                .bias = bias.value,
                .y = ctx.empty(x.shape(), x.dtype())};
  bool recorded = needs_grad(ctx, {&x, &residual}, {&weight, &bias});
  if (residual.defined()) args.sum = ctx.empty(x.shape(), x.dtype());
  if (recorded) {
    args.rstd = ctx.empty(rows, statistics);
    if (options.kind == NormKind::Layer) args.mean = ctx.empty(rows, statistics);
  }
  ctx.kernels->norm(ctx.kernel_context(), args);
  trace(ctx, "norm", Phase::Forward, 5.0 * static_cast<double>(x.numel()),
        {&x, &residual, &args.y, &args.sum});
  if (recorded) {
    auto node = std::make_unique<NormNode>(ctx, args, x, residual, weight, bias);
    if (residual.defined())
      record(ctx, std::move(node), args.y, args.sum);
    else
      record(ctx, std::move(node), args.y);
  }
  return {args.y, args.sum};
}

}  // namespace

Tensor norm(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
            const NormOptions& options) {
  return run(ctx, x, {}, weight, bias, options).y;
}

NormWithSum norm_with_residual(RankContext& ctx, const Tensor& x, const Tensor& residual,
                               const Weight& weight, const Weight& bias, const NormOptions& options) {
  require(residual.defined(), "norm_with_residual: residual is an undefined tensor; use norm");
  return run(ctx, x, residual, weight, bias, options);
}

}  // namespace megatron::ops
