#pragma once

#include <utility>

#include "megatron/nn/parameter.h"
#include "megatron/nn/seq_info.h"
#include "megatron/parallel/model_parallel.h"
#include "megatron/transformer/moe/aux_loss.h"
#include "megatron/transformer/moe/capacity.h"
#include "megatron/transformer/moe/topk_routing.h"

namespace megatron {

// Decides which experts a token goes to.
class Router final : public Module {
 public:
  Router(const std::string& name, int64_t layer, const ModelConfig& config, const ModelParallel& parallel);

  struct Result {
    Routing routing;
    Tensor loss;  // [1]: this rank's part of the balancing losses, undefined where there are none
  };
  // x [tokens, hidden]: the tokens of `share`.
  Result forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const MicrobatchShare& share);

  // After the last micro-batch of a step: experts that had too few tokens shall get a larger bias, and do so
  // in update_bias() where `gate` (bool [1]) is true.
  void finish_batch(RankContext& ctx);
  void update_bias(RankContext& ctx, const Tensor& gate);
  // The losses since they were last taken.
  std::vector<AuxLossSum> take_losses() { return std::exchange(logged_, {}); }
  void visit(const ParameterVisitor& visitor) override;

 private:
  struct Balance {
    std::string kind;
    double coefficient = 0;
  };
  Tensor noisy(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const MicrobatchShare& share) const;
  Tensor logits(RankContext& ctx, const Tensor& x);
  Tensor random_logits(RankContext& ctx, const Tensor& logits, const SeqInfo& seq,
                       const MicrobatchShare& share) const;
  Routing route(RankContext& ctx, const Tensor& logits, const SeqInfo& seq, const MicrobatchShare& share);
  Tensor replayed(RankContext& ctx, const SeqInfo& seq, const MicrobatchShare& share) const;
  Tensor losses(RankContext& ctx, const Tensor& logits, const Routing& routing, const MicrobatchShare& share);
  void count(RankContext& ctx, const Tensor& experts);
  void add_quantiles(RankContext& ctx, const Tensor& logits, const MicrobatchShare& share);
  void finish_quantiles(RankContext& ctx);
  void log_loss(RankContext& ctx, const std::string& kind, const Tensor& loss);

  int64_t layer_, experts_;
  int64_t replay_layer_ = -1;  // among the layers with experts; −1: an MTP layer's, which is not replayed
  ChoiceOptions choice_;
  std::vector<Balance> balance_;
  double z_coefficient_, jitter_, bias_rate_;
  std::optional<CapacityOptions> capacity_;
  bool sinkhorn_ = false, random_;
  bool quantiles_ = false;  // expert_bias_ is what quantile balancing takes from logits
  double quantile_memory_;
  std::optional<double> biased_;  // deviation of the bias that random logits have; below 0: one for all steps
  RouterDType dtype_;
  ProcessGroup batch_group_;
  Parameter weight_;
  std::unique_ptr<Parameter> bias_;         // of the logits, learnt
  std::unique_ptr<Parameter> expert_bias_;  // of the choice, moved by update_bias
  Tensor bias_update_;                      // by how much; kept, since a CUDA graph writes it
  Tensor quantile_sum_;  // [experts + 1]: of micro-batches since the last update, their count
  Tensor load_;          // [1, experts]: tokens of each expert in this step, on this rank
  Tensor global_load_;   // … over all ranks, for the global loss
  int64_t global_microbatches_ = 0;
  std::vector<AuxLossSum> logged_;
};

}  // namespace megatron
