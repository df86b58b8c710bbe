#include "megatron/ops/activated_linear.h"

#include <optional>

#include "megatron/ops/check.h"
#include "megatron/ops/linear_format.h"

namespace megatron::ops {
namespace {

double gemm_flops(const Tensor& dy, const Tensor& weight) {
  return 2.0 * static_cast<double>(dy.size(0)) * static_cast<double>(weight.numel());
}

class ActivatedLinearNode final : public Node {
 public:
  ActivatedLinearNode(RankContext& ctx, const ActivatedLinearOptions& options, const Tensor& x, GradSlot slot,
                      const Weight& weight, const Weight& bias, const Tensor& active)
      : options_(options.activation), x_(ctx, x), slot_(slot), weight_(weight), bias_(bias) {
    if (options.keep_active && weight.trainable()) kept_.emplace(ctx, active);
    for (const Weight* w : {&weight_, &bias_})
      if (w->accumulator) w->accumulator->expect_use();
  }
  const char* name() const override { return "activated_linear"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    dy_ = tape.take_grad(output());
    Tensor x = x_.get(ctx);
    x_.reset();
    const Tensor& w = weight_.value;
    Shape inner{x.size(0), w.size(1)};
    const bool again = weight_.accumulator && !kept_;
    if (weight_.accumulator) active_ = kept_ ? kept_->get(ctx) : ctx.empty(inner, x.dtype());
    kept_.reset();
    const bool beside = again && options_.gated && slot_;  // the kernel for a gate's gradient makes it too
    if (again && !beside) apply_activation(ctx, options_, x, active_);
    if (slot_) {
      // The activation's gradient has its place even where a kernel does without: a plan of the memory does
      // not know the device. That of x takes the same place or, behind a gate, x's own where nobody else
      // holds it.
      Tensor dactive = ctx.empty(inner, x.dtype()), dx = dactive;
      if (options_.gated) dx = x.storage().unique() ? x : ctx.empty_like(x);
      if (!beside && multiply_within(ctx, x, dx)) {
        trace(ctx, "linear_activated", Phase::BackwardData, gemm_flops(dy_, w), {&dy_, &w, &x, &dx});
      } else {
        multiply_and_pass(ctx, x, dactive, dx, beside ? active_ : Tensor{});
      }
      tape.add_grad(ctx, slot_, std::move(dx));
    }
    if (bias_.accumulator) add_row_sum(ctx, "linear_bias", dy_, *bias_.accumulator);
    if (!weight_.accumulator) dy_ = {};
  }

  bool has_weight_step() const override { return weight_.accumulator != nullptr; }
  void backward_weight(RankContext& ctx) override {
    plain_format().wgrad(ctx, {.data = dy_}, {.data = active_}, *weight_.accumulator);
    active_ = dy_ = {};
    weight_.accumulator->contribute(ctx);
  }

 private:
  // dx of dy_ by one kernel; false where there is none.
  bool multiply_within(RankContext& ctx, const Tensor& x, const Tensor& dx) {
    const KernelTable& kernels = *ctx.kernels;
    if (options_.swiglu())
      return kernels.gemm_swiglu_backward(ctx.kernel_context(), {dy_, weight_.value, x, dx});
    return options_.gelu_tanh() &&
           kernels.gemm_gelu_backward(ctx.kernel_context(), {dy_, weight_.value, x, dx});
  }

  // The same by way of dactive; a gated activation, where it is wanted again, beside it.
  void multiply_and_pass(RankContext& ctx, const Tensor& x, const Tensor& dactive, const Tensor& dx,
                         const Tensor& active) {
    plain_format().dgrad(ctx, {.data = dy_}, weight_, dactive);
    const double flops = 10.0 * static_cast<double>(x.numel());
    if (!options_.gated) {
      ctx.kernels->unary_backward(ctx.kernel_context(), {options_.kind, x, {}, dactive, dx});
      trace(ctx, "activation", Phase::BackwardData, flops, {&x, &dactive, &dx});
      return;
    }
    ctx.kernels->gated_backward(ctx.kernel_context(), {.kind = options_.kind,
                                                       .x = x,
                                                       .dy = dactive,
                                                       .dx = dx,
                                                       .y = active,
                                                       .limit = options_.limit,
                                                       .up_offset = options_.up_offset});
    trace(ctx, "gated_activation", Phase::BackwardData, flops, {&x, &dactive, &dx, &active});
  }

  ActivationOptions options_;
  Saved x_;
  std::optional<Saved> kept_;
  GradSlot slot_;
  Weight weight_, bias_;
  Tensor dy_, active_;
};

}  // namespace

Tensor activated_linear(RankContext& ctx, const ActivatedLinearOptions& options, const Tensor& x,
                        const Weight& weight, const Weight& bias, Tensor active) {
  const Tensor& w = weight.value;
  check_input(ctx, "activated_linear", "x", x);
  check_input(ctx, "activated_linear", "weight", w);
  require(x.rank() == 2 && w.rank() == 2 && x.size(1) == options.activation.inputs() * w.size(1),
          "activated_linear: x {} and weight {} do not fit; they must be [tokens, {}] and [out, in]", x, w,
          options.activation.gated ? "2 in (gate, then up)" : "in");
  check_weight(ctx, "activated_linear", weight, x.dtype());
  check_vector(ctx, "activated_linear", "bias", bias.value, w.size(0), x.dtype());
  Tensor input = detach_contiguous(ctx, x), y = ctx.empty({x.size(0), w.size(0)}, x.dtype());
  if (!active) {
    active = ctx.empty({x.size(0), w.size(1)}, x.dtype());
    apply_activation(ctx, options.activation, input, active);
  }
  plain_format().forward(ctx, {.data = active}, weight, bias.value, y);
  if (needs_grad(ctx, {&x}, {&weight, &bias}))
    record(ctx,
           std::make_unique<ActivatedLinearNode>(ctx, options, input, x.grad_slot(), weight, bias, active),
           y);
  return y;
}

}  // namespace megatron::ops
