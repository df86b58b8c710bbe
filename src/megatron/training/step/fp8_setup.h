#pragma once

#include <span>

#include "megatron/config/config.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// Marks the weights whose GEMMs are made in fp8: those of the linears of attention (latent attention too), of
// recurrent layers and of the MLP, without the layers that shall stay as they are. Norms, the attention core,
// embeddings, the output layer and routed experts do too.
void choose_fp8(const Config& config, std::span<Parameter* const> parameters);

// Delayed scaling: inputs, weights and gradients of a GEMM are scaled by what their kind was at most in
// the last steps, on all ranks that have a part of it. The first step scales by what is at hand.
class Fp8History {
 public:
  Fp8History(RankContext& ctx, const PrecisionConfig& precision, std::span<Parameter* const> parameters);

  void start_step(RankContext& ctx);  // forgets what gradients that were not used had met
  void forget_scales();               // the next step scales by what it has, as the first one does
  // Takes up what the step met, where `gate` (bool [1]) is true.
  void finish_step(RankContext& ctx, const ParallelContext& parallel, const Tensor& gate);
  void use(RankContext& ctx);  // scales from the history, which was written from outside

  struct State {
    const Parameter* weight;
    Tensor history;  // [steps, 3], the last step first
  };
  std::vector<State> state() const;

 private:
  std::vector<Parameter*> weights_;
  int64_t length_;
  bool most_recent_;
  Tensor amax_, scale_, largest_;  // [weights, 3]
  Tensor history_;                 // [weights, steps, 3]
};

}  // namespace megatron
