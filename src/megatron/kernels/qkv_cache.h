#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// QkvSplitArgs of a decoder's step: keys and values go to rows `slots` (int64 [tokens], none twice among
// those that are read) of a pool, [rows, kv heads, head_dim], contiguous, and q [tokens, heads, head_dim] is
// contiguous. cos and sin may be missing.
struct QkvCacheArgs {
  Tensor qkv, q, keys, values, slots;
  Tensor cos, sin;
  bool interleaved = false;
};

}  // namespace megatron
