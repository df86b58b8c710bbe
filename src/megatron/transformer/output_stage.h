#pragma once

#include "megatron/transformer/binary_head.h"
#include "megatron/transformer/masked_lm_head.h"

namespace megatron {

// From the last layer's output to what logits are made of: a norm, in BERT a further layer instead, a factor.
class OutputStage final : public Module {
 public:
  OutputStage(const ModelConfig& config, const TensorParallel& tp);
  // `sentence`, where given, gets what BERT's binary head makes of the rows of `seq`; undefined without one.
  Tensor forward(RankContext& ctx, Residual& residual, const SeqInfo* seq = nullptr,
                 Tensor* sentence = nullptr);
  void visit(const ParameterVisitor& visitor) override;

 private:
  double multiplier_;
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<MaskedLmHead> masked_lm_;
  std::unique_ptr<BinaryHead> binary_;
};

}  // namespace megatron
