#pragma once

#include <functional>
#include <memory>

#include "megatron/ops/elementwise.h"

namespace megatron {

// The sub-network of a model that a micro-batch trains: factors of activations, 1 where a channel is part of
// it, 0 where it is not, and between where several widths are mixed. An undefined one is 1 everywhere.
struct ElasticWidths {
  // A norm over the active channels is factor · norm(mask ∘ x / factor), where factor² is their share.
  struct Normed {
    Tensor in, out;  // mask / factor, [1, channels]; factor, [1, 1]
  };
  Normed stream;   // of norms that read the residual stream
  Tensor hidden;   // [1, hidden]: of what a layer adds to it
  Tensor ffn;      // [1, an expert's columns of this rank]
  Normed heads;    // of this rank's channels of state-space heads
  Tensor experts;  // [1, experts]

  Tensor choice;  // what all of this is made of; and how, so that a region that runs again can do so too
  std::function<std::shared_ptr<const ElasticWidths>(RankContext&, const Tensor& choice)> make;
};

// x within a width.
inline Tensor within(RankContext& ctx, const Tensor& x, const Tensor& factor) {
  return factor ? ops::mul(ctx, x, ops::cast(ctx, factor, x.dtype())) : x;
}

}  // namespace megatron
