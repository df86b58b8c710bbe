#pragma once

#include "megatron/transformer/norm.h"

namespace megatron {

// What BERT makes of the last layer's output before it becomes logits: a layer, its activation, a norm.
class MaskedLmHead final : public Module {
 public:
  MaskedLmHead(const std::string& name, const ModelConfig& config, const TensorParallel& tp);
  Tensor forward(RankContext& ctx, const Tensor& x);
  void visit(const ParameterVisitor& visitor) override;

 private:
  Unary activation_;
  Parameter weight_, bias_;
  Norm norm_;
};

}  // namespace megatron
