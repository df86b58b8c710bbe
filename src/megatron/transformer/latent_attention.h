#pragma once

#include "megatron/transformer/attention_heads.h"
#include "megatron/transformer/linear.h"
#include "megatron/transformer/norm.h"
#include "megatron/transformer/sparse_indexer.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

// Multi-latent attention (DeepSeek): queries, keys and values come from latent vectors, and a part of
// each key, which alone is turned by its position, is shared by all heads.
class LatentAttention final : public TokenMixer {
 public:
  LatentAttention(const std::string& name, int64_t layer, const ModelConfig& config,
                  const ModelParallel& parallel);
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                 const RecomputeFn& recompute_input = {}, HostOffload* host = nullptr) override;
  CacheShape cache_shape() const override;
  void set_activation_plan(const ActivationPlan& plan) override { plan_ = plan; }
  std::vector<AuxLossSum> take_losses() override;
  QkClipTarget* qk_clip_target() override { return clip_.get(); }
  void visit(const ParameterVisitor& visitor) override;

 private:
  // What the projections leave: queries [tokens, heads · (plain + turned)], keys and values
  // [tokens, heads · (plain + value)] and the shared part of keys [tokens, turned].
  struct Projected {
    Tensor q, kv, shared;
  };
  // What they are made from: latent vectors, or x itself for queries without one.
  struct Latents {
    Tensor query, latent, shared;
  };
  Latents latents(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input);
  Projected project(RankContext& ctx, const Latents& latents, const RecomputeFn& recompute_input,
                    const SeqInfo& seq);
  // Queries, keys and values [tokens, heads, channels], turned by their positions.
  std::vector<Tensor> heads_of(RankContext& ctx, const Projected& projected, const SeqInfo& seq) const;
  // `bias`: what is added to scores, where something is.
  Tensor core(RankContext& ctx, std::span<const Tensor> heads, const SeqInfo& seq,
              const Tensor& bias = {}) const;
  // Attention to the keys that the indexer of this layer, or of one before it, chooses.
  Tensor sparse(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const RecomputeFn& recompute_input);
  // A decoder's step: the cache holds latent vectors and shared keys, and the projections that make heads of
  // them are applied to queries and results instead (weight absorption).
  Tensor absorbed(RankContext& ctx, const Tensor& x, const SeqInfo& seq);
  Tensor with_recomputed_heads(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                               const RecomputeFn& recompute_input, HostOffload* host);

  AttentionHeads heads_;
  int64_t plain_, rotated_, value_;  // channels of a head without and with rotation, of a value
  int64_t latent_;
  bool interleaved_;
  ModelParallel parallel_;
  std::unique_ptr<Parameter> q_down_;  // absent where queries come straight from x
  std::unique_ptr<Norm> q_norm_;
  ColumnParallelLinear q_up_;
  Parameter kv_down_;
  Norm kv_norm_;
  ColumnParallelLinear kv_up_;
  RowParallelLinear projection_;
  std::unique_ptr<SparseIndexer> indexer_;  // chooses the keys of a query; absent where another layer's does
  std::optional<int64_t> chooser_;          // that other layer; absent where a query attends to all keys, too
  std::unique_ptr<QkClipTarget> clip_;
  ActivationPlan plan_;
};

}  // namespace megatron
