#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/ops/fp8_format.h"
#include "megatron/ops/kl_divergence.h"
#include "megatron/parallel/tensor/vocabulary_rows.h"

namespace megatron {

struct VocabLossOptions {
  int64_t vocab_size = 0;  // real; what the table has beyond it is padding and does not exist for the loss
  double label_smoothing = 0, z_loss = 0;
  double logit_softcap = 0;  // 0: none; such logits are always kept for the backward pass
  int64_t ignore_index = -100;
  bool wide_logits = false;        // fp32 logits of a narrower model
  ops::Fp8Weight* fp8 = nullptr;   // of the weight, for logits in fp8; those are always kept
  Weight bias = {};                // of the logits, split as the rows of the weight; optional
  VocabularyRows* rows = nullptr;  // which a rank holds; null: equally many, in order
};

// hidden [tokens, hidden] · weightᵀ (+ bias), capped: this rank's columns of the logits.
Tensor vocab_parallel_logits(RankContext& ctx, const Tensor& hidden, const Weight& weight,
                             const TensorParallel& tp, const VocabLossOptions& options);

// Of such logits: cross entropy against labels int64 [tokens], per token. Every rank gets all losses.
Tensor vocab_parallel_cross_entropy(RankContext& ctx, const Tensor& logits, const Tensor& labels,
                                    const TensorParallel& tp, const VocabLossOptions& options);

// Of such logits and a teacher's, both divided by the temperature: KL(teacher ‖ model), per token; 0 where
// the label is ignored. Every rank gets all of them. See ops::kl_divergence for the teacher's memory.
Tensor vocab_parallel_kl_divergence(RankContext& ctx, const Tensor& logits, Tensor teacher,
                                    const Tensor& labels, double temperature, const TensorParallel& tp,
                                    const VocabLossOptions& options);

// Which columns of the vocabulary this rank's logits have, and how ranks put together what they find in them.
ops::KlDivergenceOptions vocab_columns(int64_t columns, const TensorParallel& tp,
                                       const VocabLossOptions& options);

// Cross entropy of hidden [tokens, hidden] · weightᵀ against labels int64 [tokens], per token, the rows of
// weight split over the group. Every rank gets all losses.
Tensor vocab_parallel_loss(RankContext& ctx, const Tensor& hidden, const Weight& weight, const Tensor& labels,
                           const TensorParallel& tp, const VocabLossOptions& options);

// Σ weights · losses, one element, as the end of a tape: see ops::linear_cross_entropy_sum.
Tensor vocab_parallel_loss_sum(RankContext& ctx, const Tensor& hidden, const Weight& weight,
                               const Tensor& labels, const Tensor& weights, const TensorParallel& tp,
                               const VocabLossOptions& options);

// cap · tanh(logits / cap).
Tensor softcap(RankContext& ctx, const Tensor& logits, double cap);

}  // namespace megatron
