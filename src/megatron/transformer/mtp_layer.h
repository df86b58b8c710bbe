#pragma once

#include "megatron/transformer/layer.h"

namespace megatron {

// Multi-token prediction: a layer that looks one token further ahead than what comes before it, from that
// layer's result and the embedding of the token it has reached. In a hybrid model it holds the layers of its
// own pattern.
class MtpLayer final : public Module {
 public:
  // `depth`: how many MTP layers come before it.
  MtpLayer(const std::string& name, int64_t depth, const ModelConfig& config, const ModelParallel& parallel);
  Tensor forward(RankContext& ctx, const Tensor& embedded, const Tensor& hidden, const SeqInfo& seq);
  CacheShapes cache_shapes() const;  // of its layers, by their place in the whole model
  void set_activation_plan(const ActivationPlan& plan);
  void finish_batch(RankContext& ctx);
  void update_expert_bias(RankContext& ctx, const Tensor& gate);
  std::vector<AuxLossSum> take_losses();
  void visit(const ParameterVisitor& visitor) override;

 private:
  Norm embedding_norm_, hidden_norm_;
  int64_t first_;         // its first layer's place
  Parameter projection_;  // [hidden, 2 · hidden], whole on every rank
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  Norm final_norm_;
};

}  // namespace megatron
