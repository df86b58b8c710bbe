#include "megatron/ops/weight_tensor.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class WeightTensorNode final : public Node {
 public:
  explicit WeightTensorNode(GradAccumulator* accumulator) : accumulator_(accumulator) {
    accumulator_->expect_use();
  }
  const char* name() const override { return "weight_tensor"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor grad = tape.take_grad(output());
    const Tensor& target = accumulator_->target(ctx);
    ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 1,
                                              .a = grad,
                                              .beta = 1,
                                              .b = accumulator_->has_value() ? target : Tensor{},
                                              .out = target});
    trace(ctx, "weight_tensor", Phase::BackwardData, static_cast<double>(grad.numel()), {&grad, &target});
    accumulator_->contribute(ctx);
  }

 private:
  GradAccumulator* accumulator_;
};

}  // namespace

Tensor weight_tensor(RankContext& ctx, const Weight& weight, DType dtype) {
  check_input(ctx, "weight_tensor", "weight", weight.value);
  Tensor value = ctx.empty(weight.value.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {weight.value, value});
  trace(ctx, "weight_tensor", Phase::Forward, 0, {&weight.value, &value});
  if (needs_grad(ctx, {}, {&weight}))
    record(ctx, std::make_unique<WeightTensorNode>(weight.accumulator), value);
  return value;
}

}  // namespace megatron::ops
