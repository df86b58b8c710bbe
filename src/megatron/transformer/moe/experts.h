#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"
#include "megatron/ops/activation.h"
#include "megatron/parallel/expert/expert_dispatcher.h"
#include "megatron/transformer/activation_plan.h"

namespace megatron {

// The experts of a rank: one small MLP each, as GEMMs over groups of rows. Their weights are one tensor
// with a leading dimension of experts, under Megatron's checkpoint names.
class Experts final : public Module {
 public:
  Experts(const std::string& name, const ModelConfig& config, const ExpertParallel& parallel);
  // Results row by row; with split experts this rank's part of the sum.
  Tensor forward(RankContext& ctx, const Dispatched& tokens, const ActivationPlan& plan, HostOffload* host,
                 const Tensor& width = {});
  int64_t row_alignment() const;  // in fp8 an expert begins at a multiple of that many rows
  bool has_biases() const { return fc1_bias_ != nullptr; }
  void visit(const ParameterVisitor& visitor) override;

 private:
  Tensor activate(RankContext& ctx, const Tensor& up) const;

  ExpertParallel parallel_;
  bool gated_;
  ops::ActivationOptions activation_;
  std::unique_ptr<Parameter> fc1_, fc1_bias_, fc2_, fc2_bias_;
};

}  // namespace megatron
