#include "megatron/ops/moe.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class PermuteNode final : public Node {
 public:
  PermuteNode(const Tensor& x, const ExpertOrder& order) : slot_(x.grad_slot()), order_(order) {}
  const char* name() const override { return "permute"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()), dx = ctx.empty({order_.tokens, dy.size(1)}, dy.dtype());
    ctx.kernels->unpermute(
        ctx.kernel_context(),
        {.source = dy, .row_of_copy = order_.row_of_copy, .weights = {}, .out = dx, .k = order_.k});
    trace(ctx, "permute", Phase::BackwardData, static_cast<double>(dy.numel()), {&dy, &dx});
    tape.add_grad(ctx, slot_, std::move(dx));
  }

 private:
  GradSlot slot_;
  ExpertOrder order_;
};

class UnpermuteNode final : public Node {
 public:
  UnpermuteNode(RankContext& ctx, const Tensor& x, const ExpertOrder& order, const Tensor& weights)
      : x_(weights.grad_slot() ? Saved(ctx, x) : Saved()),
        weights_(ctx, weights),
        x_slot_(x.grad_slot()),
        weights_slot_(weights.grad_slot()),
        order_(order) {}
  const char* name() const override { return "unpermute"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()), weights = weights_.get(ctx);
    UnpermuteBackwardArgs args{.grad = dy,
                               .source = x_.get(ctx),
                               .row_of_copy = order_.row_of_copy,
                               .copy_of_row = order_.copy_of_row,
                               .weights = weights,
                               .dsource = {},
                               .dweights = {},
                               .k = order_.k};
    if (x_slot_) args.dsource = ctx.empty({order_.copy_of_row.size(0), dy.size(1)}, dy.dtype());
    if (weights_slot_) args.dweights = ctx.empty_like(weights);
    ctx.kernels->unpermute_backward(ctx.kernel_context(), args);
    trace(ctx, "unpermute", Phase::BackwardData, 3.0 * static_cast<double>(dy.numel() * order_.k),
          {&dy, &args.source, &args.dsource});
    x_.reset();
    weights_.reset();
    tape.add_grad(ctx, x_slot_, std::move(args.dsource));
    tape.add_grad(ctx, weights_slot_, std::move(args.dweights));
  }

 private:
  Saved x_, weights_;
  GradSlot x_slot_, weights_slot_;
  ExpertOrder order_;
};

void check_rows(const RankContext& ctx, const char* op, const Tensor& x, int64_t rows) {
  check_input(ctx, op, "x", x);
  check_floating(op, "x", x);
  require(x.rank() == 2 && x.size(0) == rows && x.is_contiguous(),
          "{}: x is {}, but it must be [{}, hidden], contiguous, to fit the order", op, x, rows);
}

}  // namespace

ExpertOrder expert_sort(RankContext& ctx, const Tensor& experts, int64_t num_experts, int64_t alignment) {
  check_input(ctx, "expert_sort", "experts", experts);
  check_dtype("expert_sort", "experts", experts, DType::I64);
  require(experts.rank() == 2 && experts.is_contiguous(),
          "expert_sort: experts are {}, but they must be [tokens, k], contiguous", experts);
  require(num_experts > 0 && alignment > 0, "expert_sort: {} experts, rows padded to {}", num_experts,
          alignment);
  int64_t copies = experts.numel();
  // No more experts than copies can have rows that need padding.
  int64_t rows = copies + std::min(num_experts, copies) * (alignment - 1);
  rows = (rows + alignment - 1) / alignment * alignment;
  ExpertOrder order{ctx.empty({num_experts + 1}, DType::I32), ctx.empty({copies}, DType::I64),
                    ctx.empty({rows}, DType::I64), experts.size(0), experts.size(1)};
  ctx.kernels->expert_sort(ctx.kernel_context(), {.experts = experts,
                                                  .offsets = order.offsets,
                                                  .row_of_copy = order.row_of_copy,
                                                  .copy_of_row = order.copy_of_row,
                                                  .alignment = alignment});
  trace(ctx, "expert_sort", Phase::Forward, 0, {&experts, &order.row_of_copy, &order.copy_of_row});
  return order;
}

Tensor permute(RankContext& ctx, const Tensor& x, const ExpertOrder& order) {
  check_rows(ctx, "permute", x, order.tokens);
  Tensor y = ctx.empty({order.copy_of_row.size(0), x.size(1)}, x.dtype());
  ctx.kernels->permute(ctx.kernel_context(),
                       {.source = x.detach(), .copy_of_row = order.copy_of_row, .out = y, .k = order.k});
  trace(ctx, "permute", Phase::Forward, 0, {&y, &y});
  if (needs_grad(ctx, {&x})) record(ctx, std::make_unique<PermuteNode>(x, order), y);
  return y;
}

Tensor unpermute(RankContext& ctx, const Tensor& x, const ExpertOrder& order, const Tensor& weights) {
  check_rows(ctx, "unpermute", x, order.copy_of_row.size(0));
  if (weights.defined()) {
    check_input(ctx, "unpermute", "weights", weights);
    check_shape("unpermute", "weights", weights, {order.tokens, order.k});
    check_floating("unpermute", "weights", weights);
  }
  Tensor y = ctx.empty({order.tokens, x.size(1)}, x.dtype());
  ctx.kernels->unpermute(ctx.kernel_context(), {.source = x.detach(),
                                                .row_of_copy = order.row_of_copy,
                                                .weights = weights.detach(),
                                                .out = y,
                                                .k = order.k});
  trace(ctx, "unpermute", Phase::Forward, 2.0 * static_cast<double>(y.numel() * order.k), {&x, &y});
  if (needs_grad(ctx, {&x, &weights}))
    record(ctx, std::make_unique<UnpermuteNode>(ctx, x, order, weights), y);
  return y;
}

}  // namespace megatron::ops
