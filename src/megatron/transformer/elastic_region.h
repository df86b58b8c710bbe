#pragma once

#include "megatron/autograd/recompute.h"
#include "megatron/nn/elastic_widths.h"
#include "megatron/nn/seq_info.h"

namespace megatron {

// Runs `body` on x and keeps x alone, as recompute() does. Factors of a sub-network are made again in the
// region, so that their gradients leave it.
template <class Body>
Tensor recompute_within(RankContext& ctx, const Tensor& x, const SeqInfo& seq, Body body) {
  std::vector<Tensor> kept{x};
  if (seq.elastic) kept.push_back(seq.elastic->choice);
  return recompute(ctx, kept, [seq, body](RankContext& c, std::span<const Tensor> inputs) {
    if (!seq.elastic) return std::vector<Tensor>{body(c, inputs[0], seq)};
    SeqInfo inner = seq;
    inner.elastic = seq.elastic->make(c, inputs[1]);
    return std::vector<Tensor>{body(c, inputs[0], inner)};
  })[0];
}

}  // namespace megatron
