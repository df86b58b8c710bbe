#pragma once

#include "megatron/transformer/cross_attention.h"
#include "megatron/transformer/hyper_connection.h"
#include "megatron/transformer/mlp.h"
#include "megatron/transformer/moe/moe_layer.h"
#include "megatron/transformer/norm.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

// One layer: x += mixer(norm(x)); x += mlp(norm(x)). The first part is attention or a state space, the second
// may be experts; layers of hybrid models have one of them alone, decoders of an encoder attention to it in
// between. Some models also norm what is added, or that alone; BERT norms the sums. With a parallel residual
// both parts read the layer's input: x += mixer(norm(x)) + mlp(norm(x)), by a norm each or one for both. With
// hyper-connections x is several streams, of which each part reads a mixture.
class TransformerLayer final : public Module {
 public:
  TransformerLayer(const std::string& name, int64_t index, const ModelConfig& config,
                   const ModelParallel& parallel, bool cross_attention = false);
  void forward(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host = nullptr);
  // Before parameters have memory; the layer must have a mixer.
  void replace_mixer(std::unique_ptr<TokenMixer> mixer);
  TokenMixer* mixer() { return mixer_.get(); }
  const TokenMixer* mixer() const { return mixer_.get(); }  // null: a feed-forward part alone
  void set_activation_plan(const ActivationPlan& plan);
  void visit(const ParameterVisitor& visitor) override;
  void finish_batch(RankContext& ctx);
  void update_expert_bias(RankContext& ctx, const Tensor& gate);
  // What its router's losses were since they were last taken.
  std::vector<AuxLossSum> take_losses();

 private:
  // A part between the streams: it gets what they give, and says what they are to get, before dropout.
  void within_streams(RankContext& ctx, HyperConnection& connection, Residual& residual, const SeqInfo& seq,
                      int site, const std::function<Tensor(Residual&)>& part);
  // Dropout of what the stream is to grow by; streams have it behind their connection.
  Tensor drop(RankContext& ctx, const Tensor& x, const SeqInfo& seq, int site) const;
  // What the stream is to grow by. `normed`, where it is given, gets what the mixer read.
  Tensor mix(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host,
             Tensor* normed = nullptr);
  void look_at_encoder(RankContext& ctx, Residual& residual, const SeqInfo& seq);
  // What the stream is to grow by; `normed`: what the mixer read, where that serves here too.
  Tensor feed_forward(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host,
                      const Tensor& normed = {});
  RecomputeFn recompute_norm(RankContext& ctx, Norm* norm, const Residual& residual,
                             const SeqInfo& seq) const;
  Tensor run_mlp(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input);
  Tensor run_experts(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                     const RecomputeFn& recompute_input, HostOffload* host);

  int64_t index_;
  double dropout_;
  bool parallel_;  // both parts read the layer's input
  TensorParallel tp_;
  std::unique_ptr<TokenMixer> mixer_;
  std::unique_ptr<Norm> mixer_norm_, post_mixer_norm_;
  std::unique_ptr<CrossAttention> cross_;
  std::unique_ptr<Norm> cross_norm_;
  std::unique_ptr<Norm> mlp_norm_, post_mlp_norm_;
  std::unique_ptr<Mlp> mlp_;  // one of the two, or none
  std::unique_ptr<MoeLayer> moe_;
  std::unique_ptr<Norm> mixer_sum_norm_, mlp_sum_norm_;
  std::unique_ptr<HyperConnection> mixer_streams_, mlp_streams_;
  ActivationPlan plan_;
};

}  // namespace megatron
