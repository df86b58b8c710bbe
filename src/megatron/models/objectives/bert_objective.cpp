#include "megatron/models/objectives/bert_objective.h"

#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/reduce.h"
#include "megatron/transformer/moe/aux_loss.h"

namespace megatron {

Tensor BertObjective::loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
                           std::span<Tensor> terms) {
  require(states.size() == 2, "loss: {} states, but BERT gives hidden states and a row's logits",
          states.size());
  const Tensor losses = ops::cross_entropy(ctx, states[1], micro.extra.at("is_random"));
  const Tensor mean = ops::scale(ctx, ops::sum(ctx, losses), 1.0 / static_cast<double>(losses.size(0)));
  Tensor share = ctx.empty({1}, DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {mean.detach().view({1}), share});
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, share, micro.share, share});
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, terms[0], share, terms[0]});
  const Tensor hidden = attach_aux_loss(ctx, states[0], mean, micro.mean_weight);
  return head.loss_sum(ctx, hidden, micro.labels, micro.weights);
}

}  // namespace megatron
