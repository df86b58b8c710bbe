#pragma once

#include "megatron/transformer/linear.h"
#include "megatron/transformer/recurrent_context_parallel.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

// A gated delta product: a delta net whose tokens each correct the state several times, by keys, values and
// strengths of their own (a product of Householder-like reflections), decay it once and read it once. It
// stands in the place of Mamba, with Mamba's heads, groups, state and gated norm. Groups of heads are split
// over TP, and over CP once the sequences are whole.
class DeltaProduct final : public TokenMixer {
 public:
  DeltaProduct(const std::string& name, int64_t layer, const ModelConfig& config,
               const ModelParallel& parallel);
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                 const RecomputeFn& recompute_input = {}, HostOffload* host = nullptr) override;
  CacheShape cache_shape() const override;
  void set_activation_plan(const ActivationPlan& plan) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  // Gate of the output, then of whole sequences what passes the convolution, strengths and decays.
  std::vector<Tensor> project(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                              const RecomputeFn& recompute_input);
  // Queries, keys and values of every correction, one row each.
  Tensor corrections(RankContext& ctx, const Tensor& vkq, const SeqInfo& seq);
  // What is read of the state; strengths and decays as project() leaves them.
  Tensor read(RankContext& ctx, const Tensor& qkv, const Tensor& strengths, const Tensor& decays,
              const SeqInfo& seq);
  Tensor leave(RankContext& ctx, const Tensor& y, const Tensor& gate);

  int64_t layer_;
  TensorParallel tp_;
  int64_t groups_, heads_, channels_, states_, times_;  // groups and heads of this rank; corrections
  double epsilon_;
  bool project_again_ = false, convolve_again_ = false;
  RecurrentContextParallel share_;  // of values, keys, queries, strengths, decays
  ColumnParallelLinear in_;
  Parameter conv_weight_;
  Parameter a_log_, dt_bias_, norm_weight_;
  RowParallelLinear out_;
};

}  // namespace megatron
