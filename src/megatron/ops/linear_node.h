#pragma once

#include "megatron/ops/linear_format.h"

namespace megatron::ops {

// The gradients of y = x · weightᵀ (+ bias) on one rank, whatever its number format: the weight's at once or,
// with ctx.defer_weight_grads, in the tape's weight step.
class LinearNode final : public Node {
 public:
  LinearNode(RankContext& ctx, std::shared_ptr<const LinearFormat> format, const Operand& x, GradSlot x_slot,
             const Weight& weight, const Weight& bias);
  const char* name() const override { return format_->name(); }
  void backward_data(RankContext& ctx, Tape& tape) override;
  bool has_weight_step() const override { return weight_.accumulator != nullptr; }
  void backward_weight(RankContext& ctx) override;

 private:
  std::shared_ptr<const LinearFormat> format_;
  Tensor Operand::*form_;  // of x and dy, that the weight's gradient reads
  Saved x_;
  Tensor x_scale_;  // in fp8
  GradSlot x_slot_;
  Weight weight_, bias_;
  Operand dy_;
};

}  // namespace megatron::ops
