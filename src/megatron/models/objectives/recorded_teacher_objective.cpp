#include "megatron/models/objectives/recorded_teacher_objective.h"

#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/transformer/moe/aux_loss.h"

namespace megatron {

std::vector<std::string> RecordedTeacherObjective::terms() const {
  std::vector<std::string> names = {"total loss", "logits distillation loss"};
  for (std::string& name : lm_.terms()) names.push_back(std::move(name));
  return names;
}

Tensor RecordedTeacherObjective::loss(RankContext& ctx, Head& head, const StageTensors& states,
                                      const MicroBatch& micro, std::span<Tensor> terms) {
  if (!micro.recorded_tokens) return lm_.loss(ctx, head, states, micro, terms.subspan(weighted_terms()));
  const Tensor hidden = lm_.attach_mtp_losses(ctx, head, states, micro, terms.subspan(weighted_terms()));
  ctx.show("output_layer.weight", "input0", hidden);
  const Tensor logits = head.logits(ctx, hidden);
  const auto sum = [&](const Tensor& losses) { return ops::weighted_sum(ctx, losses, micro.weights); };
  Tensor lm;
  if (share_ == 1) {
    NoGrad no_grad(ctx);
    lm = sum(head.logit_losses(ctx, logits.detach(), micro.labels));
  } else {
    lm = sum(head.logit_losses(ctx, logits, micro.labels));
  }
  Tensor teacher =
      head.completed_logits(ctx, logits.detach(), {micro.recorded_tokens, micro.recorded_log_probs});
  const Tensor kd = sum(head.logit_divergence(ctx, logits, std::move(teacher), micro.labels, 1));
  const Tensor total = share_ == 1 ? kd : ops::axpby(ctx, 1 - share_, lm, share_, kd);
  const auto report = [&](const Tensor& value, const Tensor& term) {
    Tensor wide = ctx.empty({1}, DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {value.detach().view({1}), wide});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, term, wide, term});
  };
  report(total, terms[0]);
  report(kd, terms[1]);
  return attach_aux_loss(ctx, lm.detach(), total, {});
}

}  // namespace megatron
