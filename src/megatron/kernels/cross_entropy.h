#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// What one rank's columns contribute to the loss of each row: with these four numbers per row, ranks of a
// vocabulary- parallel group agree on the loss. Columns from `valid` on are padding and do not exist. All
// fp32 (fp64 for fp64).
struct CrossEntropyStatsArgs {
  Tensor logits;  // [rows, local columns]
  Tensor labels;  // int64 [rows], global; a label outside this rank's columns contributes nothing
  int64_t vocab_begin = 0, valid = 0;
  Tensor maximum, sum_exp;    // [rows]; sum_exp relative to maximum
  Tensor target, sum_logits;  // [rows]; sum_logits optional (label smoothing)
};

// dlogits = scale[row] · d(loss)/d(logits), loss = (1 − s) · (lse − target) + s · (lse − mean logit) + z ·
// lse², with s = smoothing. dlogits may be logits. Padding columns become zero.
struct CrossEntropyGradArgs {
  Tensor logits, labels, lse, scale;  // scale [rows]: 0 where the label is ignored
  int64_t vocab_begin = 0, valid = 0, vocab_size = 0;
  double smoothing = 0, z_loss = 0;
  Tensor dlogits;
};

}  // namespace megatron
