#include "megatron/ops/reduce.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class SumNode final : public Node {
 public:
  explicit SumNode(const Tensor& x) : slot_(x.grad_slot()), shape_(x.shape()) {}
  const char* name() const override { return "sum"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor grad = tape.take_grad(output()), dx = ctx.empty(shape_, grad.dtype());
    ctx.kernels->copy(ctx.kernel_context(), {grad.expand(shape_), dx});
    ctx.trace("sum", Phase::BackwardData, 0, static_cast<double>(dx.bytes()));
    tape.add_grad(ctx, slot_, std::move(dx));
  }

 private:
  GradSlot slot_;
  Shape shape_;
};

}  // namespace

Tensor sum(RankContext& ctx, const Tensor& x) {
  check_input(ctx, "sum", "x", x);
  require(x.is_contiguous(), "sum: {} must be contiguous", x);
  Tensor y = ctx.empty({1}, x.dtype());
  ctx.kernels->reduce(ctx.kernel_context(),
                      {.kind = Reduction::Sum, .x = x.detach(), .out = y, .n = x.numel()});
  ctx.trace("sum", Phase::Forward, static_cast<double>(x.numel()), static_cast<double>(x.bytes()));
  if (recording(ctx, {&x})) record(ctx, std::make_unique<SumNode>(x), y);
  return y;
}

}  // namespace megatron::ops
