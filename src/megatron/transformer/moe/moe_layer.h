#pragma once

#include "megatron/transformer/activation_plan.h"
#include "megatron/transformer/moe/experts.h"
#include "megatron/transformer/moe/latent_projection.h"
#include "megatron/transformer/moe/router.h"
#include "megatron/transformer/moe/shared_experts.h"

namespace megatron {

// A mixture of experts: each token goes to the few experts that the router chooses, and to the shared ones.
// Latent experts see it in a smaller space; the router and the shared ones do not.
class MoeLayer final : public Module {
 public:
  MoeLayer(const std::string& name, int64_t layer, const ModelConfig& config, const ModelParallel& parallel);
  // recompute_input: makes x again, where it is not saved.
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                 const RecomputeFn& recompute_input = {}, HostOffload* host = nullptr);
  void set_activation_plan(const ActivationPlan& plan);
  void finish_batch(RankContext& ctx) { router_.finish_batch(ctx); }
  void update_expert_bias(RankContext& ctx, const Tensor& gate) { router_.update_bias(ctx, gate); }
  std::vector<AuxLossSum> take_losses() { return router_.take_losses(); }
  void visit(const ParameterVisitor& visitor) override;

 private:
  Tensor run_shared(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input);
  MicrobatchShare share_of(const Tensor& x, const SeqInfo& seq) const;

  ModelParallel parallel_;
  bool overlap_shared_, probs_on_input_;
  Router router_;
  Experts experts_;
  ExpertDispatcher dispatcher_;
  std::unique_ptr<LatentProjection> into_latent_, out_of_latent_;
  std::unique_ptr<SharedExperts> shared_;
  ActivationPlan plan_;
};

}  // namespace megatron
