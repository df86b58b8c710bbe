#pragma once

#include <functional>

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct GatedNormOptions {
  int64_t groups = 1;      // of the channels, each normed on its own
  bool gate_first = true;  // rms(x · silu(gate)) · weight; else rms(x) · weight · silu(gate)
  double epsilon = 1e-5;
  // Where other ranks hold channels of the same norm: how many there are in all, and the sum over the ranks.
  int64_t width = 0;  // of one group; 0: all of it is here
  std::function<void(RankContext&, const Tensor&)> sum_over_ranks;
};

// RMSNorm of x [tokens, channels] with a gate of the same shape; weight [channels], or [channels / groups]
// for every group.
Tensor gated_norm(RankContext& ctx, const Tensor& x, const Tensor& gate, const Weight& weight,
                  const GatedNormOptions& options = {});

}  // namespace megatron::ops
