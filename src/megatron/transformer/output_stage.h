#pragma once

#include "megatron/transformer/masked_lm_head.h"

namespace megatron {

// From the last layer's output to what logits are made of: a norm, in BERT a further layer instead, a factor.
class OutputStage final : public Module {
 public:
  OutputStage(const ModelConfig& config, const TensorParallel& tp);
  Tensor forward(RankContext& ctx, Residual& residual);
  void visit(const ParameterVisitor& visitor) override;

 private:
  double multiplier_;
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<MaskedLmHead> masked_lm_;
};

}  // namespace megatron
