#include "megatron/ops/linear_node.h"

#include "megatron/ops/check.h"

namespace megatron::ops {

LinearNode::LinearNode(RankContext& ctx, std::shared_ptr<const LinearFormat> format, const Operand& x,
                       GradSlot x_slot, const Weight& weight, const Weight& bias)
    : format_(std::move(format)),
      form_(x.weight_form()),
      x_(weight.trainable() ? Saved(ctx, x.*form_) : Saved()),
      x_scale_(x.transposed_scale),
      x_slot_(x_slot),
      weight_(weight),
      bias_(bias) {
  for (const Weight* w : {&weight_, &bias_})
    if (w->accumulator) w->accumulator->expect_use();
}

void LinearNode::backward_data(RankContext& ctx, Tape& tape) {
  const Tensor dy = tape.take_grad(output());
  dy_ = format_->quantize(ctx, dy, LinearFormat::Side::Gradient);
  if (x_slot_) {
    Tensor dx = ctx.empty({dy.size(0), weight_.value.size(-1)}, dy.dtype());
    format_->dgrad(ctx, dy_, weight_, dx);
    tape.add_grad(ctx, x_slot_, std::move(dx));
  }
  if (bias_.accumulator) add_row_sum(ctx, "linear_bias", dy, *bias_.accumulator);
  if (!weight_.accumulator) {
    dy_ = {};
    return;
  }
  // What x would be made from again may be gone by the time W runs. In fp8 it is a tensor of its own.
  if (ctx.defer_weight_grads && form_ != &Operand::transposed) x_ = Saved(ctx, x_.get(ctx));
  Operand kept{.block_rows = dy_.block_rows};
  if (form_ == &Operand::transposed) kept.transposed_scale = dy_.transposed_scale;
  kept.*form_ = dy_.*form_;
  dy_ = std::move(kept);
}

void LinearNode::backward_weight(RankContext& ctx) {
  Operand x{.transposed_scale = x_scale_, .block_rows = dy_.block_rows};
  x.*form_ = x_.get(ctx);
  format_->wgrad(ctx, dy_, x, *weight_.accumulator);
  x_.reset();
  dy_ = {};
  weight_.accumulator->contribute(ctx);
}

}  // namespace megatron::ops
