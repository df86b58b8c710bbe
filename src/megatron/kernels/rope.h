#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// cos and sin of position · inverse frequency for each token: [tokens, frequencies], fp32 (fp64 in an fp64
// model), each times `amplitude` (yarn). positions: int64 [tokens], or [3, tokens] (time, height, width) with
// `sections`: how many consecutive frequencies follow each row.
struct RopeTableArgs {
  Tensor positions, inverse_frequencies, cos, sin;
  double amplitude = 1;
  int64_t sections[3] = {0, 0, 0};
};

// Rotates the first 2 · frequencies elements of each head of x [tokens, heads, head_dim], or [tokens, groups,
// heads of a group, head_dim], into y (which may be x) and copies the rest. Half-split pairs element i with i
// + frequencies, interleaved 2i with 2i + 1. `inverse` turns back (the backward pass).
struct RopeArgs {
  Tensor x, y;  // unit stride in head_dim
  Tensor cos, sin;
  bool interleaved = false, inverse = false;
};

}  // namespace megatron
