#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/config/schema/model_config.h"
#include "megatron/parallel/expert/expert_dispatcher.h"

namespace megatron {

// How scores become choices.
struct ChoiceOptions {
  RouterScore score = RouterScore::softmax;
  bool pre_softmax = false;  // softmax over all experts before choosing, instead of over the chosen
  int64_t k = 2;
  int64_t groups = 0;         // of neighbouring experts; 0: no groups
  int64_t open_groups = 0;    // of them to a token
  int64_t group_score_k = 0;  // a group's score is the sum of its best ones
  double scaling = 1;         // of the probabilities
  bool normalize = true;      // probabilities that are no softmax sum to one

  static ChoiceOptions of(const ModelConfig& config);
};

// The k experts of each row of logits [tokens, experts] and their probabilities. `bias` [experts], optional,
// is added to the scores for choosing alone. `replayed` [tokens, k], optional: the experts themselves; −1: by
// the scores. `width` [1, experts], optional, multiplies scores, which are no softmax, and the bias; an
// expert that it makes 0 is not chosen.
Routing choose_experts(RankContext& ctx, const Tensor& logits, const ChoiceOptions& options,
                       const Tensor& bias = {}, const Tensor& replayed = {}, const Tensor& width = {});

// `experts` where `replayed` is −1 or not given, else `replayed`.
Tensor with_replayed(RankContext& ctx, const Tensor& experts, const Tensor& replayed);

// Scores of all experts that balancing looks at; each row sums to 1.
Tensor aux_loss_scores(RankContext& ctx, const Tensor& logits, RouterScore score);

// 1 where a token chose an expert, else 0: [tokens, experts] from indices [tokens, k].
Tensor routing_map(RankContext& ctx, const Tensor& indices, int64_t experts, DType dtype);

}  // namespace megatron
