#pragma once

#include "megatron/transformer/mlp.h"

namespace megatron {

// The experts that every token goes to: an MLP without biases, split over TP, with an optional gate per
// token.
class SharedExperts final : public Module {
 public:
  SharedExperts(const std::string& name, const ModelConfig& config, const TensorParallel& tp);
  Tensor forward(RankContext& ctx, const Tensor& x,
                 const RecomputeFn& recompute_input = {});  // recompute_input: as for linears
  void set_activation_plan(const ActivationPlan& plan) { mlp_.set_activation_plan(plan); }
  void visit(const ParameterVisitor& visitor) override;

 private:
  Mlp mlp_;
  std::unique_ptr<Parameter> gate_;
};

}  // namespace megatron
