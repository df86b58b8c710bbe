#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/nn/micro_batch.h"
#include "megatron/ops/likeliest.h"

namespace megatron {

// What passes from one pipeline stage to the next: hidden states first, then what else a model makes, such as
// the states of its MTP layers.
using StageTensors = std::vector<Tensor>;

// What the last chunk of a model can say of its hidden states [tokens, hidden].
class Head {
 public:
  virtual ~Head() = default;
  // Σ weights · losses, one element: what a training step's backward pass starts from. Weights are [tokens],
  // with stride 0 where all are alike.
  virtual Tensor loss_sum(RankContext& ctx, const Tensor& hidden, const Tensor& labels,
                          const Tensor& weights) = 0;
  // −log p of every label, [tokens]; 0 where the label is ignored.
  virtual Tensor token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) = 0;
  virtual Tensor logits(RankContext& ctx, const Tensor& hidden) = 0;  // of this rank's columns
  // The same losses of such logits.
  virtual Tensor logit_losses(RankContext& ctx, const Tensor& logits, const Tensor& labels) = 0;
  // Of such logits and a teacher's, both divided by the temperature: KL(teacher ‖ model) of every token,
  // [tokens]; 0 where the label is ignored. The gradient may take the place of the teacher's logits.
  virtual Tensor logit_divergence(RankContext& ctx, const Tensor& logits, Tensor teacher,
                                  const Tensor& labels, double temperature) = 0;
  // Finds the top `count` of the logits that this rank has.
  virtual ops::Likeliest likeliest(RankContext& ctx, const Tensor& logits, int64_t count) = 0;
  // Logits of a teacher whose likeliest tokens are known: see ops::completed_logits.
  virtual Tensor completed_logits(RankContext& ctx, const Tensor& logits, const ops::Likeliest& teacher) = 0;
};

// What training minimises. The language-model loss is one; distillation and preference losses are others.
class Objective {
 public:
  virtual ~Objective() = default;
  // Names of the further losses that are reported beside the loss itself, on every rank the same.
  virtual std::vector<std::string> terms() const { return {}; }
  // How many of these, the first ones, are sums over tokens with the weights of `micro`, as the loss is; the
  // others are means.
  virtual size_t weighted_terms() const { return 0; }
  // The loss of a micro-batch, one element, scaled as its gradient shall be: the weights of `micro` hold
  // that. `terms`, fp64 [1] each, get what this micro-batch adds to terms().
  virtual Tensor loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
                      std::span<Tensor> terms) = 0;
};

}  // namespace megatron
