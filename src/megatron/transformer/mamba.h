#pragma once

#include "megatron/transformer/linear.h"
#include "megatron/transformer/recurrent_context_parallel.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

// Mamba-2: a short convolution, a state space whose decay depends on the token, and a gated norm. Heads and
// the groups that share B and C are split over TP, and over CP once the sequences are whole.
class MambaMixer final : public TokenMixer {
 public:
  MambaMixer(const std::string& name, int64_t layer, const ModelConfig& config,
             const ModelParallel& parallel);
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                 const RecomputeFn& recompute_input = {}, HostOffload* host = nullptr) override;
  CacheShape cache_shape() const override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  Tensor norm(RankContext& ctx, const Tensor& y, const Tensor& gate);

  int64_t layer_;
  TensorParallel tp_;
  int64_t groups_, heads_, channels_, states_, chunk_;  // groups and heads of this rank
  int64_t inner_;                                       // channels of all ranks' heads
  double step_min_, step_max_, epsilon_;
  bool full_width_norm_;
  RecurrentContextParallel share_;  // of x, B, C, steps
  ColumnParallelLinear in_;
  Parameter conv_weight_;
  std::unique_ptr<Parameter> conv_bias_;
  Parameter a_log_, d_, dt_bias_, norm_weight_;
  RowParallelLinear out_;
};

}  // namespace megatron
