#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// Megatron's fused projection orders its columns by query group: the group's query heads, one key head, one
// value head. Splits qkv [tokens, groups · (queries per group + 2) · head_dim] into q, k and v [tokens,
// heads, head_dim], contiguous, and turns q and k by rope where cos and sin [tokens, frequencies] are given.
// `merge` goes the other way with the inverse rotation: the backward pass.
struct QkvSplitArgs {
  Tensor qkv, q, k, v;
  Tensor cos, sin;
  bool interleaved = false, merge = false;
};

}  // namespace megatron
