#include "megatron/ops/weight_tensor.h"

namespace megatron::ops {
namespace {

class WeightTensorNode final : public Node {
 public:
  explicit WeightTensorNode(GradSink* sink) : sink_(sink) { sink_->expect_use(); }
  const char* name() const override { return "weight_tensor"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor grad = tape.take_grad(output());
    const Tensor& target = sink_->target(ctx);
    ctx.kernels->axpby(
        ctx.kernel_context(),
        {.alpha = 1, .a = grad, .beta = 1, .b = sink_->has_value() ? target : Tensor{}, .out = target});
    sink_->contribute(ctx);
  }

 private:
  GradSink* sink_;
};

}  // namespace

Tensor weight_tensor(RankContext& ctx, const Weight& weight, DType dtype) {
  Tensor value = ctx.empty(weight.value.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {weight.value, value});
  if (ctx.tape && weight.trainable()) record(ctx, std::make_unique<WeightTensorNode>(weight.sink), value);
  return value;
}

}  // namespace megatron::ops
