#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/transformer/activation_plan.h"
#include "megatron/transformer/linear.h"

namespace megatron {

// The activation named in the configuration, as a kernel knows it.
Unary activation_kernel(Activation activation);

// fc2(activation(fc1(x))), gated or plain.
class Mlp final : public Module {
 public:
  Mlp(const std::string& name, const ModelConfig& config, const TensorParallel& tp);
  Tensor forward(RankContext& ctx, const Tensor& x,
                 const RecomputeFn& recompute_input = {});  // recompute_input: as for linears
  void set_activation_plan(const ActivationPlan& plan) { recompute_activation_ = plan.mlp_activation; }
  void visit(const ParameterVisitor& visitor) override;

 private:
  ops::ActivationOptions activation_;
  bool recompute_activation_ = false;
  ColumnParallelLinear fc1_;
  RowParallelLinear fc2_;
};

}  // namespace megatron
