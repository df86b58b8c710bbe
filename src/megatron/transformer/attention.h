#pragma once

#include "megatron/transformer/attention_heads.h"
#include "megatron/transformer/head_groups.h"
#include "megatron/transformer/linear.h"
#include "megatron/transformer/norm.h"
#include "megatron/transformer/token_mixer.h"
#include "megatron/transformer/wide_norm.h"

namespace megatron {

// Multi-head attention of a sequence with itself; query heads may share key/value heads.
class SelfAttention final : public TokenMixer {
 public:
  SelfAttention(const std::string& name, int64_t layer, const ModelConfig& config,
                const ModelParallel& parallel);
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                 const RecomputeFn& recompute_input = {}, HostOffload* host = nullptr) override;
  CacheShape cache_shape() const override;
  void set_activation_plan(const ActivationPlan& plan) override { plan_ = plan; }
  QkClipTarget* qk_clip_target() override { return clip_.get(); }
  void visit(const ParameterVisitor& visitor) override;

 private:
  Tensor core(RankContext& ctx, Tensor projected, const SeqInfo& seq);
  Tensor attend_apart(RankContext& ctx, const Tensor& fused, const SeqInfo& seq,
                      const ops::Rotation& rotation, const ops::AttentionOptions& options);
  std::pair<Tensor, Tensor> split_gate(RankContext& ctx, const Tensor& both) const;
  struct Heads {
    Tensor q, k, v;  // [tokens, heads, head_dim]
    Tensor gate;     // [tokens, heads · head_dim]; undefined: none
  };
  Heads split_heads(RankContext& ctx, const Tensor& fused, const ops::Rotation& rotation) const;
  Heads split_shared_groups(RankContext& ctx, const Tensor& fused) const;

  TensorParallel tp_;
  HeadGroups groups_of_ranks_;
  AttentionHeads heads_;
  int64_t groups_, head_dim_;  // groups of this rank
  double softcap_;
  int64_t window_left_ = -1;
  bool interleaved_, rotates_, local_rope_ = false;
  bool causal_;
  bool off_by_one_;  // every query also sees a key of score 0 without a value
  bool gated_;       // the projection also makes a gate of the output, behind the queries of each group
  ContextParallel context_;
  ProcessGroup key_group_;
  ColumnParallelLinear qkv_;
  std::unique_ptr<Norm> q_norm_, k_norm_;  // of each head on its own
  std::optional<double> l2_epsilon_;       // of norms without weights
  std::unique_ptr<WideNorm> wide_q_norm_, wide_k_norm_;
  std::unique_ptr<Parameter> sinks_;
  RowParallelLinear projection_;
  std::unique_ptr<QkClipTarget> clip_;
  ActivationPlan plan_;
};

}  // namespace megatron
