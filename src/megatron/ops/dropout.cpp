#include "megatron/ops/dropout.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class DropoutNode final : public Node {
 public:
  DropoutNode(DropoutArgs args, GradSlot x_slot, GradSlot residual_slot)
      : args_(std::move(args)), x_slot_(x_slot), residual_slot_(residual_slot) {
    args_.x = args_.y = args_.residual = {};  // the mask comes from the counter again
  }
  const char* name() const override { return "dropout"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    if (x_slot_) {
      args_.x = dy;
      args_.y = ctx.empty(dy.shape(), dy.dtype());
      ctx.kernels->dropout(ctx.kernel_context(), args_);
      trace(ctx, "dropout", Phase::BackwardData, static_cast<double>(dy.numel()), {&dy, &args_.y});
      tape.add_grad(ctx, x_slot_, args_.y);
    }
    tape.add_grad(ctx, residual_slot_, std::move(dy));
    args_ = {};
  }

 private:
  DropoutArgs args_;
  GradSlot x_slot_, residual_slot_;
};

}  // namespace

Tensor dropout(RankContext& ctx, const Tensor& x, double p, RngKey key, const DropoutOffsets& offsets,
               const Tensor& residual) {
  check_input(ctx, "dropout", "x", x);
  check_floating("dropout", "x", x);
  require(p >= 0 && p <= 1, "dropout: p = {} is not a probability", p);
  require(x.rank() >= 1, "dropout: x {} must have at least one dimension", x);
  if (residual.defined()) {
    check_input(ctx, "dropout", "residual", residual);
    check_shape("dropout", "residual", residual, x.shape());
    check_dtype("dropout", "residual", residual, x.dtype());
  } else if (p == 0) {
    return x;
  }
  if (offsets.rows) {
    check_input(ctx, "dropout", "rows", offsets.rows);
    check_dtype("dropout", "rows", offsets.rows, DType::I64);
    check_shape("dropout", "rows", offsets.rows, {x.size(-1) ? x.numel() / x.size(-1) : 0});
  }
  DropoutArgs args{.x = detach_contiguous(ctx, x),
                   .residual = residual.defined() ? detach_contiguous(ctx, residual) : Tensor{},
                   .y = ctx.empty(x.shape(), x.dtype()),
                   .p = p,
                   .key = key,
                   .row_begin = offsets.row_begin,
                   .column_begin = offsets.column_begin,
                   .global_columns = offsets.global_columns ? offsets.global_columns : x.size(-1),
                   .rows = offsets.rows ? detach_contiguous(ctx, offsets.rows) : Tensor{}};
  ctx.kernels->dropout(ctx.kernel_context(), args);
  Tensor y = args.y;
  trace(ctx, "dropout", Phase::Forward, static_cast<double>(x.numel()), {&x, &residual, &y});
  if (needs_grad(ctx, {&x, &residual}))
    record(ctx,
           std::make_unique<DropoutNode>(args, x.grad_slot(),
                                         residual.defined() ? residual.grad_slot() : GradSlot{}),
           y);
  return y;
}

}  // namespace megatron::ops
