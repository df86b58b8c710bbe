#include "megatron/models/objectives/distillation_objective.h"

#include "megatron/ops/cross_entropy.h"
#include "megatron/transformer/moe/aux_loss.h"

namespace megatron {

std::vector<std::string> DistillationObjective::terms() const {
  std::vector<std::string> names = {"total loss", "logits distillation loss"};
  for (std::string& name : lm_.terms()) names.push_back(std::move(name));
  return names;
}

// What the divergence is multiplied by: kd_loss_scale · loss / divergence of the whole micro-batch, so that
// no layout changes it; 0 where the models agree. `sums`, fp64 [2], are this rank's loss and divergence.
Tensor DistillationObjective::divergence_factor(RankContext& ctx, const Tensor& sums) const {
  const auto kernels = ctx.kernel_context();
  Tensor all = ctx.empty({2}, DType::F64);
  ctx.kernels->copy(kernels, {sums, all});
  if (options_.context && options_.context.size() > 1) options_.context.all_reduce(all).wait();
  const Tensor lm = all.slice(0, 0, 1), kd = all.slice(0, 1, 2), none = ctx.zeros({1}, DType::F64);
  const Tensor differs = ctx.empty({1}, DType::Bool), factor = ctx.empty({1}, DType::F64);
  ctx.kernels->compare(kernels, {Comparison::Less, none, kd, differs});
  ctx.kernels->binary(kernels, {Binary::Div, lm, kd, factor});
  ctx.kernels->axpby(kernels, {.alpha = options_.kd_loss_scale, .a = factor, .b = {}, .out = factor});
  ctx.kernels->where(kernels, {differs, factor, none, factor});
  return factor;
}

Tensor DistillationObjective::loss(RankContext& ctx, Head& head, const StageTensors& states,
                                   const MicroBatch& micro, std::span<Tensor> terms) {
  if (!micro.taught) return lm_.loss(ctx, head, states, micro, terms.subspan(weighted_terms()));
  Tensor taught;
  {
    NoGrad no_grad(ctx);
    taught = teacher_->logits(ctx, micro.taught);
  }
  const Tensor hidden = lm_.attach_mtp_losses(ctx, head, states, micro, terms.subspan(weighted_terms()));
  ctx.show("output_layer.weight", "input0", hidden);
  const Tensor logits = head.logits(ctx, hidden);
  const auto lm_loss = [&](const Tensor& of) {
    return ops::weighted_sum(ctx, head.logit_losses(ctx, of, micro.labels), micro.weights);
  };
  Tensor lm;
  if (options_.skip_lm_loss) {
    NoGrad no_grad(ctx);
    lm = lm_loss(logits.detach());
  } else {
    lm = lm_loss(logits);
  }
  const Tensor kd = ops::weighted_sum(
      ctx, head.logit_divergence(ctx, logits, std::move(taught), micro.labels, options_.temperature),
      micro.weights);

  const auto kernels = ctx.kernel_context();
  Tensor sums = ctx.empty({2}, DType::F64);
  ctx.kernels->copy(kernels, {lm.detach().view({1}), sums.slice(0, 0, 1)});
  ctx.kernels->copy(kernels, {kd.detach().view({1}), sums.slice(0, 1, 2)});
  const Tensor own_kd = sums.slice(0, 1, 2);
  Tensor factor;  // undefined: 1
  Tensor total = own_kd;
  if (!options_.skip_lm_loss) {
    factor = divergence_factor(ctx, sums);
    total = ctx.empty({1}, DType::F64);
    ctx.kernels->binary(kernels, {Binary::Mul, own_kd, factor, total});
    ctx.kernels->binary(kernels, {Binary::Add, total, sums.slice(0, 0, 1), total});
  }
  ctx.kernels->binary(kernels, {Binary::Add, terms[0], total, terms[0]});
  ctx.kernels->binary(kernels, {Binary::Add, terms[1], own_kd, terms[1]});
  return attach_aux_loss(ctx, lm, kd, factor);
}

}  // namespace megatron
