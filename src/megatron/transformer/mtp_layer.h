#pragma once

#include "megatron/transformer/layer.h"

namespace megatron {

// Multi-token prediction: a layer that looks one token further ahead than what
// comes before it, from that layer's result and the embedding of the token it
// has reached.
class MtpLayer final : public Module {
 public:
  // `index`: of the layer it contains, counted on from the decoder's.
  MtpLayer(const std::string& name, int64_t index, const ModelConfig& config, const ModelParallel& parallel);
  Tensor forward(RankContext& ctx, const Tensor& embedded, const Tensor& hidden, const SeqInfo& seq);
  void set_activation_plan(const ActivationPlan& plan) { layer_.set_activation_plan(plan); }
  void finish_batch(RankContext& ctx) { layer_.finish_batch(ctx); }
  void update_expert_bias(RankContext& ctx, const Tensor& gate) { layer_.update_expert_bias(ctx, gate); }
  void visit(const ParameterVisitor& visitor) override;

 private:
  Norm embedding_norm_, hidden_norm_;
  Parameter projection_;  // [hidden, 2 · hidden], whole on every rank
  TransformerLayer layer_;
  Norm final_norm_;
};

}  // namespace megatron
