#include "megatron/ops/causal_conv.h"

#include "megatron/kernels/limits/recurrent.h"
#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class CausalConvNode final : public Node {
 public:
  CausalConvNode(RankContext& ctx, const CausalConvArgs& args, const Tensor& x, const Weight& weight,
                 const Weight& bias)
      : rows_(args.rows), x_(ctx, args.x), x_slot_(x.grad_slot()), weight_(weight), bias_(bias) {
    for (const Weight* w : {&weight_, &bias_})
      if (w->accumulator) w->accumulator->expect_use();
  }
  const char* name() const override { return "causal_conv"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor x = x_.get(ctx), dy = tape.take_grad(output());
    if (!dy) dy = ctx.zeros(x.shape(), x.dtype());
    DType wide = accumulation_dtype(x.dtype());
    CausalConvBackwardArgs args{
        .rows = rows_, .x = x, .weight = weight_.value, .bias = bias_.value, .dy = dy};
    if (x_slot_) args.dx = ctx.empty(x.shape(), x.dtype());
    if (weight_.accumulator) args.dweight = ctx.empty(weight_.value.shape(), wide);
    if (bias_.accumulator) args.dbias = ctx.empty(bias_.value.shape(), wide);
    ctx.kernels->causal_conv_backward(ctx.kernel_context(), args);
    trace(ctx, "causal_conv", Phase::BackwardData,
          6.0 * static_cast<double>(x.numel() * weight_.value.size(-1)), {&x, &dy, &args.dx});
    accumulate_grad(ctx, args.dweight, weight_);
    accumulate_grad(ctx, args.dbias, bias_);
    tape.add_grad(ctx, x_slot_, args.dx);
    x_.reset();
  }

 private:
  SequenceRows rows_;
  Saved x_;
  GradSlot x_slot_;
  Weight weight_, bias_;
};

}  // namespace

Tensor causal_conv(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                   const SequenceRows& rows) {
  check_input(ctx, "causal_conv", "x", x);
  check_floating("causal_conv", "x", x);
  require(x.rank() == 2, "causal_conv: x {} must be [tokens, channels]", x);
  check_input(ctx, "causal_conv", "weight", weight.value);
  check_dtype("causal_conv", "weight", weight.value, x.dtype());
  const int64_t channels = x.size(1), width = weight.value.size(-1);
  check_shape("causal_conv", "weight", weight.value, {channels, 1, width});
  require(width <= limits::kConvolutionWidth, "causal_conv: the weight {} is wider than {} tokens",
          weight.value, limits::kConvolutionWidth);
  check_vector(ctx, "causal_conv", "bias", bias.value, channels, x.dtype());
  check_rows("causal_conv", x, rows);

  CausalConvArgs args{.rows = rows,
                      .x = detach_row_contiguous(ctx, x),
                      .weight = weight.value,
                      .bias = bias.value,
                      .y = ctx.empty(x.shape(), x.dtype())};
  ctx.kernels->causal_conv(ctx.kernel_context(), args);
  trace(ctx, "causal_conv", Phase::Forward, 2.0 * static_cast<double>(x.numel() * width), {&x, &args.y});
  if (needs_grad(ctx, {&x}, {&weight, &bias}))
    record(ctx, std::make_unique<CausalConvNode>(ctx, args, x, weight, bias), args.y);
  return args.y;
}

}  // namespace megatron::ops
