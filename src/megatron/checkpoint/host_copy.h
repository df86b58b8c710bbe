#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron {

// From host memory (a mapped file, say; any strides) into the rank's own, wherever that is; floating-point
// values are converted to the target's dtype.
void copy_from_host(RankContext& ctx, const Tensor& source, const Tensor& target);
// The same from memory that stays until the rank's stream has read it: the host does not wait where that is
// pinned and contiguous.
void queue_from_host(RankContext& ctx, const Tensor& source, const Tensor& target);

}  // namespace megatron
