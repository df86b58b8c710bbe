#include "megatron/ops/shape.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class ViewNode final : public Node {
 public:
  explicit ViewNode(const Tensor& x) : slot_(x.grad_slot()), shape_(x.shape()) {}
  const char* name() const override { return "view"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor grad = tape.take_grad(output());
    if (!grad.is_contiguous()) {
      Tensor dense = ctx.empty_like(grad);
      ctx.kernels->copy(ctx.kernel_context(), {grad, dense});
      grad = dense;
    }
    tape.add_grad(ctx, slot_, grad.view(shape_));
  }

 private:
  GradSlot slot_;
  Shape shape_;
};

}  // namespace

Tensor view(RankContext& ctx, const Tensor& x, const Shape& shape) {
  check_input(ctx, "view", "x", x);
  Tensor y = x.detach().view(shape);
  if (recording(ctx, {&x})) record(ctx, std::make_unique<ViewNode>(x), y);
  return y;
}

}  // namespace megatron::ops
