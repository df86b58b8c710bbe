#pragma once

#include "megatron/ops/cross_entropy.h"

namespace megatron::ops {

struct KlDivergenceOptions {
  double temperature = 1;   // divides the logits of both
  int64_t vocab_size = 0;   // columns from here on are padding and never count; 0: all columns are real
  int64_t vocab_begin = 0;  // global index of this rank's first column
  // Where ranks hold parts of the vocabulary, they make local statistics, and then local sums [rows], those
  // of the whole vocabulary. vocab_size must then be given.
  std::function<void(RankContext&, CrossEntropyStats&)> reduce;
  std::function<void(RankContext&, const Tensor&)> sum;
};

// KL(teacher ‖ student) = Σ p · (ln p − ln q) of each row, where p and q are the softmax of the logits of
// teacher and student [rows, columns] over the temperature: [rows], fp32 (fp64 for fp64). The teacher gets no
// gradient: where nobody else holds its logits, that of the student takes their place. They may be of the
// accumulation dtype.
Tensor kl_divergence(RankContext& ctx, const Tensor& student, Tensor teacher,
                     const KlDivergenceOptions& options = {});

// ln Σ exp of each row of logits over the whole vocabulary, [rows]; the temperature is not looked at, and
// nothing recorded.
Tensor log_sum_exp(RankContext& ctx, const Tensor& logits, const KlDivergenceOptions& options);

}  // namespace megatron::ops
