#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Doubly stochastic matrices from logits [count, n, n] in their accumulation dtype, by Sinkhorn and Knopp's
// iteration (SinkhornArgs).
Tensor sinkhorn(RankContext& ctx, const Tensor& logits, int64_t iterations);

}  // namespace megatron::ops
