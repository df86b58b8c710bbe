#include "megatron/ops/linear_node.h"

#include "megatron/ops/check.h"

namespace megatron::ops {

using Side = LinearFormat::Side;

LinearNode::LinearNode(RankContext& ctx, std::shared_ptr<const LinearFormat> format, const Tensor& x,
                       const Tensor& input, const Operand& operand, const Weight& weight,
                       const LinearCall& call)
    : format_(std::move(format)),
      route_(call.route),
      adapter_(call.adapter),
      activation_(call.input_activation),
      x_rows_(x.size(0)),
      x_slot_(x.grad_slot()),
      weight_(weight),
      bias_(call.bias) {
  remakes_ = activation_ && !call.keep_active && has_weight_grads();
  if (activation_) before_ = Saved(ctx, x.detach());
  if (!remakes_ && gathers()) {
    if (has_weight_grads()) x_ = Saved(ctx, input);
  } else if (!remakes_) {
    if (weight_.accumulator) x_ = Saved(ctx, operand.*operand.weight_form());
    if (adapts()) adapter_x_ = Saved(ctx, input);
    x_scale_ = operand.transposed_scale;
  }
  for (const Weight* w : {&weight_, &bias_})
    if (w->accumulator) w->accumulator->expect_use();
  if (adapts()) adapter_->expect_use();
}

const char* LinearNode::name() const {
  return activation_ ? "activated_linear" : route_ ? route_->name() : format_->name();
}

void LinearNode::backward_data(RankContext& ctx, Tape& tape) {
  const Tensor dy = tape.take_grad(output());
  const bool weight_now =
      has_weight_grads() && route_ && route_->sums_input_gradient() && !ctx.defer_weight_grads;
  Tensor before;
  // The kernel for a gate's gradient makes its activation, too.
  const bool beside = remakes_ && activation_->gated && x_slot_ && !weight_now;
  if (activation_) {
    before = before_.get(ctx);
    before_.reset();
    if (remakes_) active_ = ctx.empty({before.size(0), weight_.value.size(-1)}, before.dtype());
    if (remakes_ && !beside) apply_activation(ctx, *activation_, before, active_);
  }
  Pending gathering, reducing;
  Tensor gathered, dinput, dx;
  if (weight_now && gathers()) gathered = gathered_input(ctx, gathering);
  if (x_slot_ && activation_ && !beside) dx = fused_gradient(ctx, dy, before);
  if (!dx) dinput = input_gradient(ctx, dy, reducing);
  const auto finish = [&] {
    reducing.wait();
    if (!x_slot_) return;
    if (!activation_)
      dx = std::move(dinput);
    else if (!dx)
      dx = through_activation(ctx, dinput, before, beside ? active_ : Tensor{});
    tape.add_grad(ctx, x_slot_, std::move(dx));
  };
  if (!weight_now) finish();
  if (bias_.accumulator) add_row_sum(ctx, "linear_bias", dy, *bias_.accumulator);
  if (weight_now) {
    gathering.wait();
    weight_gradients(ctx, gathered);
    weight_done_ = true;
    finish();
  } else if (has_weight_grads()) {
    keep_for_weight(ctx);
  } else {
    dy_ = {};
  }
}

void LinearNode::backward_weight(RankContext& ctx) {
  Pending gathering;
  Tensor gathered;
  if (gathers()) gathered = gathered_input(ctx, gathering);
  gathering.wait();
  weight_gradients(ctx, gathered);
}

Tensor LinearNode::gathered_input(RankContext& ctx, Pending& pending) {
  return route_->all_rows(ctx, remakes_ ? active_ : x_.get(ctx), pending);
}

// The gradient of what the GEMM reads, and dy_ of all rows.
Tensor LinearNode::input_gradient(RankContext& ctx, const Tensor& dy, Pending& pending) {
  const bool gathers_dy = route_ && route_->gathers_gradient();
  const auto unadapted = [&](const Tensor& rows) { return adapter_ ? adapter_->gradient(ctx, rows) : rows; };
  Tensor all = gathers_dy ? dy : unadapted(dy), dinput;
  if (!gathers_dy) dy_ = format_->quantize(ctx, all, Side::Gradient);
  const auto gemm = [&](const Tensor& rows, int64_t begin, const Tensor& out) {
    const Tensor inner = gathers_dy ? unadapted(rows) : rows;
    Operand part =
        gathers_dy ? format_->quantize(ctx, inner, Side::Gradient) : dy_.rows(ctx, begin, rows.size(0));
    format_->dgrad(ctx, part, weight_, out);
    if (adapter_) adapter_->dgrad(ctx, inner, begin, out);
    if (gathers_dy && rows.size(0) == x_rows_) dy_ = std::move(part);  // gathered at once
  };
  const int64_t in = weight_.value.size(-1);
  if (route_) {
    const Tensor own = all;
    const LinearRoute::RowGemm none;
    dinput = route_->dgrad(ctx, own, in, x_slot_ ? LinearRoute::RowGemm(gemm) : none, all, pending);
  } else if (x_slot_) {
    dinput = ctx.empty({dy.size(0), in}, dy.dtype());
    gemm(all, 0, dinput);
  }
  if (!has_weight_grads()) return dinput;
  if (gathers_dy) all = unadapted(all);
  if (!dy_.data) dy_ = format_->quantize(ctx, all, Side::Gradient);
  if (adapts()) adapter_dy_ = all;
  return dinput;
}

// That of x through GEMM and activation by one kernel; undefined where there is none.
Tensor LinearNode::fused_gradient(RankContext& ctx, const Tensor& dy, const Tensor& before) {
  if (route_ || adapter_ || format_ != plain_format()) return {};
  const KernelTable& kernels = *ctx.kernels;
  const Tensor& w = weight_.value;
  // The activation's gradient has its place even where a kernel does without: a plan of the memory does not
  // know the device.
  Tensor dx = place_of_dx(ctx, ctx.empty({dy.size(0), w.size(1)}, dy.dtype()), before);
  const bool done =
      activation_->swiglu()
          ? kernels.gemm_swiglu_backward(ctx.kernel_context(), {dy, w, before, dx})
          : activation_->gelu_tanh() && kernels.gemm_gelu_backward(ctx.kernel_context(), {dy, w, before, dx});
  if (!done) return {};
  trace(ctx, "linear_activated", Phase::BackwardData,
        2.0 * static_cast<double>(dy.size(0)) * static_cast<double>(w.numel()), {&dy, &w, &before, &dx});
  dy_ = {.data = dy};
  return dx;
}

// The gradient of x takes the place of the activation's or, behind a gate, x's own where nobody else holds
// it.
Tensor LinearNode::place_of_dx(RankContext& ctx, const Tensor& dactive, const Tensor& before) const {
  if (!activation_->gated) return dactive;
  return before.storage().unique() ? before : ctx.empty_like(before);
}

// `active`, where it is defined, gets the gated activation.
Tensor LinearNode::through_activation(RankContext& ctx, const Tensor& dactive, const Tensor& before,
                                      const Tensor& active) const {
  Tensor dx = place_of_dx(ctx, dactive, before);
  const double flops = 10.0 * static_cast<double>(before.numel());
  if (!activation_->gated) {
    ctx.kernels->unary_backward(ctx.kernel_context(), {activation_->kind, before, {}, dactive, dx});
    trace(ctx, "activation", Phase::BackwardData, flops, {&before, &dactive, &dx});
    return dx;
  }
  ctx.kernels->gated_backward(ctx.kernel_context(), {.kind = activation_->kind,
                                                     .x = before,
                                                     .dy = dactive,
                                                     .dx = dx,
                                                     .y = active,
                                                     .limit = activation_->limit,
                                                     .up_offset = activation_->up_offset});
  trace(ctx, "gated_activation", Phase::BackwardData, flops, {&before, &dactive, &dx, &active});
  return dx;
}

void LinearNode::keep_for_weight(RankContext& ctx) {
  const auto form = dy_.weight_form();
  if (ctx.defer_weight_grads && !remakes_) {
    // What x would be made from again may be gone by the time W runs. In fp8 it is a tensor of its own.
    if (gathers() || (weight_.accumulator && form != &Operand::transposed)) x_ = Saved(ctx, x_.get(ctx));
    if (adapts() && !gathers()) adapter_x_ = Saved(ctx, adapter_x_.get(ctx));
  }
  Operand kept{.block_rows = dy_.block_rows};
  if (form == &Operand::transposed) kept.transposed_scale = dy_.transposed_scale;
  kept.*form = dy_.*form;
  dy_ = std::move(kept);
}

// `gathered`: the input of all rows, where this rank keeps a share of it.
void LinearNode::weight_gradients(RankContext& ctx, const Tensor& gathered) {
  const Tensor made = gathered ? gathered : active_;  // the input, where it was made in the backward pass
  if (weight_.accumulator) {
    Operand x{.transposed_scale = x_scale_, .block_rows = dy_.block_rows};
    if (made)
      x = format_->quantize(ctx, made, Side::Input);
    else
      x.*dy_.weight_form() = x_.get(ctx);
    format_->wgrad(ctx, dy_, x, *weight_.accumulator);
  }
  if (adapts()) adapter_->wgrad(ctx, adapter_dy_, made ? made : adapter_x_.get(ctx), weight_.value);
  x_.reset();
  adapter_x_.reset();
  active_ = adapter_dy_ = {};
  dy_ = {};
  if (weight_.accumulator) weight_.accumulator->contribute(ctx);
}

}  // namespace megatron::ops
