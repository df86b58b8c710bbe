#pragma once

#include "megatron/transformer/cross_attention.h"
#include "megatron/transformer/mlp.h"
#include "megatron/transformer/moe/moe_layer.h"
#include "megatron/transformer/norm.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

// One layer: x += mixer(norm(x)); x += mlp(norm(x)). The first part is attention or a state space, the second
// may be experts; layers of hybrid models have one of them alone, decoders of an encoder attention to it in
// between. Some models also norm what is added, or that alone; BERT norms the sums.
class TransformerLayer final : public Module {
 public:
  TransformerLayer(const std::string& name, int64_t index, const ModelConfig& config,
                   const ModelParallel& parallel, bool cross_attention = false);
  void forward(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host = nullptr);
  // Before parameters have memory; the layer must have a mixer.
  void replace_mixer(std::unique_ptr<TokenMixer> mixer);
  void set_activation_plan(const ActivationPlan& plan);
  void visit(const ParameterVisitor& visitor) override;
  void finish_batch(RankContext& ctx);
  void update_expert_bias(RankContext& ctx, const Tensor& gate);

 private:
  void mix(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host);
  void look_at_encoder(RankContext& ctx, Residual& residual, const SeqInfo& seq);
  void feed_forward(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host);
  RecomputeFn recompute_norm(RankContext& ctx, Norm* norm, const Residual& residual) const;
  Tensor run_mlp(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input);
  Tensor run_experts(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                     const RecomputeFn& recompute_input, HostOffload* host);

  int64_t index_;
  double dropout_;
  TensorParallel tp_;
  std::unique_ptr<TokenMixer> mixer_;
  std::unique_ptr<Norm> mixer_norm_, post_mixer_norm_;
  std::unique_ptr<CrossAttention> cross_;
  std::unique_ptr<Norm> cross_norm_;
  std::unique_ptr<Norm> mlp_norm_, post_mlp_norm_;
  std::unique_ptr<Mlp> mlp_;  // one of the two, or none
  std::unique_ptr<MoeLayer> moe_;
  std::unique_ptr<Norm> mixer_sum_norm_, mlp_sum_norm_;
  ActivationPlan plan_;
};

}  // namespace megatron
