#pragma once

#include <optional>

#include "megatron/ops/linear.h"
#include "megatron/ops/linear_format.h"

namespace megatron::ops {

// The gradients of a linear, whatever its number format (LinearFormat), wherever its rows come from
// (LinearRoute), with an activation before it and an adapter beside it: the weight's at once or, with
// ctx.defer_weight_grads, in the tape's weight step. A route that sums the input's gradient over ranks does
// so beside the weight's GEMM, which then belongs to the data step.
class LinearNode final : public Node {
 public:
  // x has the slot. `input` is what the GEMM reads: x, or its activation. `operand` is that in the format,
  // where this rank has all rows of it.
  LinearNode(RankContext& ctx, std::shared_ptr<const LinearFormat> format, const Tensor& x,
             const Tensor& input, const Operand& operand, const Weight& weight, const LinearCall& call);
  const char* name() const override;
  void backward_data(RankContext& ctx, Tape& tape) override;
  bool has_weight_step() const override { return has_weight_grads() && !weight_done_; }
  void backward_weight(RankContext& ctx) override;

 private:
  bool adapts() const { return adapter_ && adapter_->trainable(); }
  bool has_weight_grads() const { return weight_.accumulator || adapts(); }
  bool gathers() const { return route_ && route_->gathers_input(); }

  Tensor gathered_input(RankContext& ctx, Pending& pending);
  Tensor input_gradient(RankContext& ctx, const Tensor& dy, Pending& pending);
  Tensor fused_gradient(RankContext& ctx, const Tensor& dy, const Tensor& before);
  Tensor place_of_dx(RankContext& ctx, const Tensor& dactive, const Tensor& before) const;
  Tensor through_activation(RankContext& ctx, const Tensor& dactive, const Tensor& before,
                            const Tensor& active) const;
  void keep_for_weight(RankContext& ctx);
  void weight_gradients(RankContext& ctx, const Tensor& gathered);

  std::shared_ptr<const LinearFormat> format_;
  std::shared_ptr<const LinearRoute> route_;
  const LinearAdapter* adapter_;
  std::optional<ActivationOptions> activation_;
  Saved before_;         // x, where it is activated
  Saved x_, adapter_x_;  // the input as the gradients of weight and adapter read it, or this rank's share
  Tensor x_scale_;       // in fp8
  bool remakes_;         // the activation, which is then not among what is kept
  Tensor active_;        // made again
  int64_t x_rows_;       // of this rank: all of them, unless the route gathers the input
  GradSlot x_slot_;
  Weight weight_, bias_;
  Operand dy_;  // of all rows
  Tensor adapter_dy_;
  bool weight_done_ = false;
};

}  // namespace megatron::ops
