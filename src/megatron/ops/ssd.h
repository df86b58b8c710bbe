#pragma once

#include <limits>

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct SsdOptions {
  int64_t heads = 1, channels = 1, groups = 1, states = 1;
  int64_t chunk = 128;  // tokens whose matmuls run at once; no result depends on it
  double step_min = 0, step_max = std::numeric_limits<double>::infinity();  // of softplus(dt + dt_bias)
};

// The weights of Mamba-2's states, [heads], in the accumulation dtype.
struct SsdWeights {
  Weight a_log, d, dt_bias;
};

// Mamba-2's scan along each sequence: xbc [tokens, heads · channels + 2 · groups · states] holds x, b and c,
// dt [tokens, heads]; the result is [tokens, heads · channels]. `state` [sequences, heads, channels, states],
// where given, is what came before and is moved on; there is no gradient through it.
Tensor ssd(RankContext& ctx, const Tensor& xbc, const Tensor& dt, const SsdWeights& weights,
           const SsdOptions& options, const SequenceRows& rows, const Tensor& state = {});

}  // namespace megatron::ops
