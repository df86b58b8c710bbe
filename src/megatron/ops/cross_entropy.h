#pragma once

#include <functional>

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Per row, over the columns that this rank holds: see kernels/cross_entropy.h.
struct CrossEntropyStats {
  Tensor maximum, sum_exp, target, sum_logits;  // sum_logits only with label smoothing
};

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double smoothing = 0;     // of labels, over the true vocabulary
  double z_loss = 0;        // adds z_loss · lse²
  int64_t vocab_size = 0;   // columns from here on are padding and never count; 0: all columns are real
  int64_t vocab_begin = 0;  // global index of this rank's first column
  // Called between the statistics and the loss: makes local statistics those of the whole vocabulary, where
  // ranks hold parts of it. vocab_size must then be given.
  std::function<void(RankContext&, CrossEntropyStats&)> reduce;
};

// The loss of each row of logits [rows, columns] with labels int64 [rows]: [rows], fp32 (fp64 for fp64); 0
// where the label is ignored. A label outside the whole vocabulary is refused on the CPU.
Tensor cross_entropy(RankContext& ctx, const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options = {});

// The same of logits = logit_scale · hidden · weightᵀ, `chunk_rows` rows at a time, so that the logits never
// exist whole. The backward pass computes each chunk's logits again: the weight's gradient sums over rows
// whose upstream gradients are not known before, so only a second GEMM is exact for all of them.
Tensor linear_cross_entropy(RankContext& ctx, const Tensor& hidden, const Weight& weight,
                            const Tensor& labels, const CrossEntropyOptions& options = {},
                            double logit_scale = 1, int64_t chunk_rows = 1024);

// Σ weights · losses, one element [1]. `weights` [rows], of the losses' dtype, has stride 0 where all rows
// have the same; undefined: 1.
Tensor weighted_sum(RankContext& ctx, const Tensor& losses, const Tensor& weights);

// The weighted sum of the same losses as what a backward pass starts from: since its gradient is then known
// to be 1, the gradients of hidden and weight are made here, chunk by chunk, and the logits are computed once
// (in the dtype of hidden) and overwritten by their own gradient. A tape on which something else follows the
// loss is refused in backward. chunk_rows 0: as many as give about a GiB of logits.
Tensor linear_cross_entropy_sum(RankContext& ctx, const Tensor& hidden, const Weight& weight,
                                const Tensor& labels, const Tensor& weights = {},
                                const CrossEntropyOptions& options = {}, int64_t chunk_rows = 0);

}  // namespace megatron::ops
