#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// The loss of a row: (1 − s) · (lse − target) + s · (lse − mean logit) + z · lse², s = smoothing, lse the
// log-sum-exp over the vocabulary. Three kernels, so that ranks which hold parts of the vocabulary can agree
// in between: statistics of the local columns, the loss from the statistics of all columns, the gradient of
// the local columns. Statistics, lse, loss and scale are fp32 (fp64 for fp64), contiguous; scale may also be
// one number for all rows, with stride 0.

// What one rank's columns contribute. Columns from `valid` on are padding and do not exist: with valid = 0,
// maximum is −∞ and the sums 0.
struct CrossEntropyStatsArgs {
  Tensor logits;  // [rows, local columns], contiguous
  Tensor labels;  // int64 [rows], global; a label outside this rank's columns contributes nothing
  int64_t vocab_begin = 0, valid = 0;
  Tensor maximum, sum_exp;    // [rows]; sum_exp relative to maximum
  Tensor target, sum_logits;  // [rows]; sum_logits optional (label smoothing)
};

// lse and loss from statistics of the whole vocabulary. A row whose label is ignored has loss 0.
struct CrossEntropyLossArgs {
  Tensor maximum, sum_exp, target, sum_logits;  // sum_logits optional, without smoothing
  Tensor labels;
  int64_t ignore_index = -100, vocab_size = 0;
  double smoothing = 0, z_loss = 0;
  Tensor lse, loss;  // [rows]
};

// dlogits = scale[row] · d(loss)/d(logits), zero where the label is ignored and in padding columns. dlogits
// may be logits, or of another dtype.
struct CrossEntropyGradArgs {
  Tensor logits, labels, lse, scale;
  int64_t vocab_begin = 0, valid = 0, ignore_index = -100, vocab_size = 0;
  double smoothing = 0, z_loss = 0;
  Tensor dlogits;
};

// The three in one where no other rank has to be asked: the loss of each row and, where dlogits is defined
// (it may be logits), scale[row] · d(loss)/d(logits).
struct CrossEntropyArgs {
  Tensor logits, labels, scale;
  int64_t valid = 0, ignore_index = -100, vocab_size = 0;
  double smoothing = 0, z_loss = 0;
  Tensor loss, dlogits;
};

}  // namespace megatron
