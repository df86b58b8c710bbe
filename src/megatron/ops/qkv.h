#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct Rotation {
  Tensor cos, sin;  // [tokens, frequencies]; undefined: no rotation
  bool interleaved = false;
};

struct QkvHeads {
  Tensor q, k, v;  // [tokens, heads, channels]
};

// Splits a fused projection qkv [tokens, groups · (heads / groups + 2) · channels], ordered by query group,
// and turns q and k.
QkvHeads split_qkv(RankContext& ctx, const Tensor& qkv, int64_t heads, int64_t groups, int64_t channels,
                   const Rotation& rotation = {});

}  // namespace megatron::ops
