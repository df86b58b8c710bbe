#pragma once

#include <span>
#include <string_view>

#include "megatron/config/config.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// Whether a parameter of this name is the weight of a linear of attention, of a recurrent layer, of an MLP or
// of experts.
bool is_linear_weight(std::string_view name);

// Marks the weights whose GEMMs are made in fp8: those of the linears of attention (latent attention too), of
// recurrent layers, of the MLP and of experts, without the layers that shall stay as they are. Norms, the
// attention core and embeddings do too, and the output layer unless it is asked for. A file of formats by
// module (PrecisionRecipe) has the last word.
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
    Tensor history;   // [steps, 3], the last step first; [experts of this rank, steps, 3]
    ShardSpec shard;  // which part of all experts that is
  };
  std::vector<State> state() const;

 private:
  // A weight and its rows in the tensors below: one, or one for each of this rank's experts.
  struct Scaled {
    Parameter* parameter;
    int64_t row, rows;
    Tensor of(const Tensor& all) const { return all.slice(0, row, row + rows); }
  };
  std::vector<Scaled> weights_;  // those of experts last
  int64_t dense_ = 0;            // rows of the others
  int64_t length_;
  bool most_recent_;
  Tensor amax_, scale_, largest_;  // [rows, 3]
  Tensor history_;                 // [rows, steps, 3]
};

}  // namespace megatron
