#pragma once

#include <string>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

// Losses that keep the experts evenly loaded. Each is this rank's part: the parts of all ranks of the group
// add up to the loss.
namespace megatron {

// What a router's losses of one kind ("aux_loss", "z_loss", …) were in a step, coefficient included: this
// rank's part of the sum over its micro-batches, fp64 [1].
struct AuxLossSum {
  std::string kind;
  int64_t layer = 0;  // of the whole model, from 0
  Tensor sum;
};

// Which sequence each token of a rank belongs to, and how many tokens a sequence has over all ranks.
struct AuxLossUnits {
  Tensor ids;  // int64 [tokens]
  int64_t count = 1, tokens = 1;
};

// Switch's loss: coefficient · E / (k · n²) · Σ over experts of (tokens of the expert) · (sum of its scores),
// averaged over the units (sequences, or one unit for all). `load` [units, experts] are the tokens of each
// expert over all ranks, scores [tokens, experts] this rank's.
Tensor load_balancing_loss(RankContext& ctx, const Tensor& scores, const Tensor& load,
                           const AuxLossUnits& units, double coefficient, int64_t k);

// The tokens of each expert, [units, experts], summed over the group.
Tensor expert_load(RankContext& ctx, const Tensor& routing_map, const AuxLossUnits& units,
                   const ProcessGroup& group);

// coefficient / tokens · Σ logsumexp(logits)²: keeps logits small.
Tensor z_loss(RankContext& ctx, const Tensor& logits, double coefficient, int64_t tokens);

// y itself; in the backward pass `loss` [1] gets the gradient `weight` [1], as if weight · loss had been
// added to the loss of the step. An undefined weight is 1.
Tensor attach_aux_loss(RankContext& ctx, const Tensor& y, const Tensor& loss, const Tensor& weight);

}  // namespace megatron
