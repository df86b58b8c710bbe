#include "megatron/ops/straight_through.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class StraightThroughNode final : public Node {
 public:
  explicit StraightThroughNode(GradSlot slot) : slot_(slot) {}
  const char* name() const override { return "straight_through"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    tape.add_grad(ctx, slot_, tape.take_grad(output()));
  }

 private:
  GradSlot slot_;
};

}  // namespace

Tensor straight_through(RankContext& ctx, const Tensor& value, const Tensor& source) {
  check_shape("straight_through", "the value", value, source.shape());
  Tensor y = value.detach();
  if (needs_grad(ctx, {&source})) record(ctx, std::make_unique<StraightThroughNode>(source.grad_slot()), y);
  return y;
}

}  // namespace megatron::ops
