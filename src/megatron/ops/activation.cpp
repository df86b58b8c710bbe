#include "megatron/ops/activation.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

// Arithmetic per element of an activation, roughly; memory is what they cost.
constexpr double kFlops = 10;

class ActivationNode final : public Node {
 public:
  ActivationNode(RankContext& ctx, Unary kind, const Tensor& x, GradSlot slot, const Weight& bias)
      : kind_(kind), x_(ctx, x), x_slot_(slot), bias_(bias) {
    if (bias_.accumulator) bias_.accumulator->expect_use();
  }
  const char* name() const override { return "activation"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()), x = x_.get(ctx);
    Tensor dx = ctx.empty(x.shape(), x.dtype());
    ctx.kernels->unary_backward(ctx.kernel_context(), {kind_, x, bias_.value, dy, dx});
    trace(ctx, "activation", Phase::BackwardData, kFlops * static_cast<double>(x.numel()), {&x, &dy, &dx});
    if (bias_.accumulator) add_row_sum(ctx, "activation_bias", dx, *bias_.accumulator);
    tape.add_grad(ctx, x_slot_, std::move(dx));
    x_.reset();
  }

 private:
  Unary kind_;
  Saved x_;
  GradSlot x_slot_;
  Weight bias_;
};

class GatedNode final : public Node {
 public:
  GatedNode(RankContext& ctx, const ActivationOptions& options, const Tensor& x, GradSlot slot,
            const Weight& bias)
      : options_(options), x_(ctx, x), x_slot_(slot), bias_(bias) {
    if (bias_.accumulator) bias_.accumulator->expect_use();
  }
  const char* name() const override { return "gated_activation"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()), x = x_.get(ctx);
    x_.reset();
    Tensor dx = x.storage().unique() ? x : ctx.empty(x.shape(), x.dtype());  // nobody else holds x
    ctx.kernels->gated_backward(ctx.kernel_context(), {.kind = options_.kind,
                                                       .x = x,
                                                       .bias = bias_.value,
                                                       .dy = dy,
                                                       .dx = dx,
                                                       .limit = options_.limit,
                                                       .up_offset = options_.up_offset});
    trace(ctx, "gated_activation", Phase::BackwardData, kFlops * static_cast<double>(x.numel()),
          {&x, &dy, &dx});
    if (bias_.accumulator) add_row_sum(ctx, "gated_activation_bias", dx, *bias_.accumulator);
    tape.add_grad(ctx, x_slot_, std::move(dx));
  }

 private:
  ActivationOptions options_;
  Saved x_;
  GradSlot x_slot_;
  Weight bias_;
};

// On every device the same, whatever its kernels could do.
bool can_gate(Unary kind) {
  for (Unary known : {Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::QuickGelu, Unary::Relu,
                      Unary::SquaredRelu, Unary::Sigmoid})
    if (kind == known) return true;
  return false;
}

}  // namespace

Tensor activation(RankContext& ctx, Unary kind, const Tensor& x, const Weight& bias) {
  check_input(ctx, "activation", "x", x);
  check_floating("activation", "x", x);
  require(!bias.defined() || x.rank() >= 1, "activation: x {} has no dimension for a bias", x);
  if (bias.defined()) check_vector(ctx, "activation", "bias", bias.value, x.size(-1), x.dtype());
  Tensor input = detach_contiguous(ctx, x), y = ctx.empty(x.shape(), x.dtype());
  ctx.kernels->unary(ctx.kernel_context(), {kind, input, bias.value, y});
  trace(ctx, "activation", Phase::Forward, kFlops * static_cast<double>(x.numel()), {&x, &y});
  if (needs_grad(ctx, {&x}, {&bias}))
    record(ctx, std::make_unique<ActivationNode>(ctx, kind, input, x.grad_slot(), bias), y);
  return y;
}

void apply_activation(RankContext& ctx, const ActivationOptions& options, const Tensor& x, const Tensor& y) {
  if (!options.gated) {
    ctx.kernels->unary(ctx.kernel_context(), {options.kind, x, {}, y});
    trace(ctx, "activation", Phase::Forward, kFlops * static_cast<double>(y.numel()), {&x, &y});
    return;
  }
  ctx.kernels->gated(
      ctx.kernel_context(),
      {.kind = options.kind, .x = x, .y = y, .limit = options.limit, .up_offset = options.up_offset});
  trace(ctx, "gated_activation", Phase::Forward, kFlops * static_cast<double>(y.numel()), {&x, &y});
}

Tensor gated_activation(RankContext& ctx, const ActivationOptions& options, const Tensor& x,
                        const Weight& bias) {
  check_input(ctx, "gated_activation", "x", x);
  check_floating("gated_activation", "x", x);
  require(x.rank() >= 1 && x.size(-1) % 2 == 0,
          "gated_activation: the last dimension of x {} must hold gate and up, so its size must be even", x);
  require(can_gate(options.kind), "gated_activation: unary function {} cannot be a gate",
          static_cast<int>(options.kind));
  check_vector(ctx, "gated_activation", "bias", bias.value, x.size(-1), x.dtype());
  Shape shape = x.shape();
  shape[-1] /= 2;
  Tensor input = detach_contiguous(ctx, x), y = ctx.empty(shape, x.dtype());
  ctx.kernels->gated(ctx.kernel_context(), {.kind = options.kind,
                                            .x = input,
                                            .bias = bias.value,
                                            .y = y,
                                            .limit = options.limit,
                                            .up_offset = options.up_offset});
  trace(ctx, "gated_activation", Phase::Forward, kFlops * static_cast<double>(y.numel()), {&x, &y});
  if (needs_grad(ctx, {&x}, {&bias}))
    record(ctx, std::make_unique<GatedNode>(ctx, options, input, x.grad_slot(), bias), y);
  return y;
}

}  // namespace megatron::ops
