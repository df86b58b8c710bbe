#pragma once

#include "megatron/ops/qkv.h"

namespace megatron::ops {

// split_qkv() of a decoder's step: keys and values go to rows `slots` of `keys` and `values` [rows, groups,
// head_dim], queries are returned. Undefined, and nothing was done, where the device has no kernel for it.
// Records nothing.
Tensor split_qkv_to_cache(RankContext& ctx, const Tensor& qkv, const QkvShape& shape,
                          const Rotation& rotation, const Tensor& slots, const Tensor& keys,
                          const Tensor& values);

}  // namespace megatron::ops
