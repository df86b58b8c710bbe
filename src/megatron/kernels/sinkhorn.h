#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// Matrices [n, n] in the accumulation dtype that become doubly stochastic: e^(logits − their row's maximum),
// then `iterations` times rows and then columns divided by their sums, where those are at least `epsilon`.
struct SinkhornArgs {
  int64_t iterations = 1;
  double epsilon = 1e-6;
  Tensor logits, y;  // [count, n, n], contiguous
};
struct SinkhornBackwardArgs {
  int64_t iterations = 1;
  double epsilon = 1e-6;
  Tensor logits, dy, dlogits;
};

}  // namespace megatron
