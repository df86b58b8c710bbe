#pragma once

#include "megatron/transformer/linear.h"
#include "megatron/transformer/recurrent_context_parallel.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

// A gated delta net (linear attention of Qwen3-Next): a short convolution of queries, keys and values, a
// state that is corrected towards each value, a norm and a gate. Key heads and their value heads are split
// over TP, and over CP once the sequences are whole. Gated DeltaNet-2 has a decay and a strength of erasing
// for each key channel, and one of writing for each value channel.
class DeltaNet final : public TokenMixer {
 public:
  DeltaNet(const std::string& name, int64_t layer, const ModelConfig& config, const ModelParallel& parallel);
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                 const RecomputeFn& recompute_input = {}, HostOffload* host = nullptr) override;
  CacheShape cache_shape() const override;
  void set_activation_plan(const ActivationPlan& plan) override { recompute_norm_ = plan.delta_norm; }
  void visit(const ParameterVisitor& visitor) override;

 private:
  // What each token reads of the state. `parts`: of the projection, whole along the sequence, without the
  // gate of the output.
  Tensor by_heads(RankContext& ctx, const Tensor& qkv, const std::vector<Tensor>& parts,
                  const SequenceRows& rows, const Tensor& state);
  Tensor by_channels(RankContext& ctx, const Tensor& qkv, const std::vector<Tensor>& parts,
                     const SequenceRows& rows, const Tensor& state);

  int64_t layer_;
  bool channels_;  // Gated DeltaNet-2
  TensorParallel tp_;
  int64_t key_heads_, value_heads_, key_channels_, value_channels_;  // heads of this rank
  double epsilon_;
  bool recompute_norm_ = false;
  RecurrentContextParallel share_;  // of queries, keys, values and what makes their gates
  ColumnParallelLinear in_;
  Parameter conv_weight_, a_log_, dt_bias_, norm_weight_;
  RowParallelLinear out_;
};

}  // namespace megatron
