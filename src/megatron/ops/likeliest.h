#pragma once

#include "megatron/ops/kl_divergence.h"

namespace megatron::ops {

// The likeliest tokens of each row and ln p of each, the likeliest first: of all columns, or of those that
// this rank has. Tokens are global ids; −1 where there are fewer columns than asked for.
struct Likeliest {
  Tensor tokens, log_probs;  // int64 [rows, k]; fp32 (fp64 for fp64) [rows, k]
};
// Of logits [rows, columns], whose columns `options` describe; the temperature is not looked at.
Likeliest likeliest_tokens(RankContext& ctx, const Tensor& logits, int64_t k,
                           const KlDivergenceOptions& options);

// Logits of a teacher of which no more is known than its likeliest tokens, in the accumulation dtype: what
// probability these leave is shared out as `student` has it. KL(teacher ‖ student) of them, and its gradient,
// is that of the known tokens and one that stands for all others.
Tensor completed_logits(RankContext& ctx, const Tensor& student, const Likeliest& teacher,
                        const KlDivergenceOptions& options);

}  // namespace megatron::ops
