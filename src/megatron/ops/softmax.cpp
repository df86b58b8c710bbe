#include "megatron/ops/softmax.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class SoftmaxNode final : public Node {
 public:
  SoftmaxNode(RankContext& ctx, const Tensor& y, GradSlot slot) : y_(ctx, y), slot_(slot) {}
  const char* name() const override { return "softmax"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()), y = y_.get(ctx);
    Tensor dx = ctx.empty(y.shape(), y.dtype());
    ctx.kernels->softmax_backward(ctx.kernel_context(), {y, dy, dx});
    trace(ctx, "softmax", Phase::BackwardData, 4.0 * static_cast<double>(y.numel()), {&y, &dy, &dx});
    tape.add_grad(ctx, slot_, std::move(dx));
    y_.reset();
  }

 private:
  Saved y_;
  GradSlot slot_;
};

}  // namespace

Tensor softmax(RankContext& ctx, const Tensor& x) {
  check_input(ctx, "softmax", "x", x);
  check_floating("softmax", "x", x);
  require(x.rank() >= 1, "softmax: x {} has no dimension to normalise over", x);
  Tensor y = ctx.empty(x.shape(), x.dtype());
  ctx.kernels->softmax(ctx.kernel_context(), {detach_contiguous(ctx, x), y});
  trace(ctx, "softmax", Phase::Forward, 10.0 * static_cast<double>(x.numel()), {&x, &y});
  if (needs_grad(ctx, {&x})) record(ctx, std::make_unique<SoftmaxNode>(ctx, y, x.grad_slot()), y);
  return y;
}

}  // namespace megatron::ops
