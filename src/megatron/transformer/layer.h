#pragma once

#include "megatron/transformer/attention.h"
#include "megatron/transformer/latent_attention.h"
#include "megatron/transformer/mlp.h"
#include "megatron/transformer/moe/moe_layer.h"

namespace megatron {

// One decoder layer: x += attention(norm(x)); x += mlp(norm(x)), where the second part may be experts. Some
// models also norm what is added, or that alone.
class TransformerLayer final : public Module {
 public:
  TransformerLayer(const std::string& name, int64_t index, const ModelConfig& config,
                   const ModelParallel& parallel);
  void forward(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host = nullptr);
  void set_activation_plan(const ActivationPlan& plan);
  void visit(const ParameterVisitor& visitor) override;
  void finish_batch(RankContext& ctx);

 private:
  Recipe norm_again(RankContext& ctx, Norm* norm, const Residual& residual) const;
  Tensor run_mlp(RankContext& ctx, const Tensor& x, const Recipe& again);
  Tensor run_experts(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const Recipe& again,
                     HostOffload* host);

  int64_t index_;
  double dropout_;
  TensorParallel tp_;
  std::unique_ptr<Norm> attention_norm_, post_attention_norm_;
  std::unique_ptr<SelfAttention> attention_;  // one of the two
  std::unique_ptr<LatentAttention> latent_attention_;
  std::unique_ptr<Norm> mlp_norm_, post_mlp_norm_;
  std::unique_ptr<Mlp> mlp_;  // one of the two
  std::unique_ptr<MoeLayer> moe_;
  ActivationPlan plan_;
};

}  // namespace megatron
