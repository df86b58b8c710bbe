#pragma once

#include "megatron/transformer/attention.h"
#include "megatron/transformer/mlp.h"

namespace megatron {

// One decoder layer: x += attention(norm(x)); x += mlp(norm(x)). Some models also norm what is added, or
// that alone.
class TransformerLayer final : public Module {
 public:
  TransformerLayer(const std::string& name, int64_t index, const ModelConfig& config,
                   const ModelParallel& parallel);
  void forward(RankContext& ctx, Residual& residual, const SeqInfo& seq);
  void visit(const ParameterVisitor& visitor) override;

 private:
  int64_t index_;
  double dropout_;
  TensorParallel tp_;
  std::unique_ptr<Norm> attention_norm_, post_attention_norm_;
  SelfAttention attention_;
  std::unique_ptr<Norm> mlp_norm_, post_mlp_norm_;
  Mlp mlp_;
};

}  // namespace megatron
