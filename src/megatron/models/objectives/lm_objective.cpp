#include "megatron/models/objectives/lm_objective.h"

#include "megatron/ops/cross_entropy.h"
#include "megatron/transformer/moe/aux_loss.h"

namespace megatron {

std::vector<std::string> LmObjective::terms() const {
  std::vector<std::string> names;
  for (int64_t i = 1; i <= mtp_layers_; ++i) names.push_back(fmt::format("mtp_{} loss", i));
  return names;
}

Tensor LmObjective::attach_mtp_losses(RankContext& ctx, Head& head, const StageTensors& states,
                                      const MicroBatch& micro, std::span<Tensor> terms) const {
  require(states.size() == 1 + micro.mtp.size(), "loss: {} states of MTP layers, but tokens for {}",
          states.size() - 1, micro.mtp.size());
  Tensor hidden = states[0];
  for (size_t depth = 0; depth < micro.mtp.size(); ++depth) {
    const MtpTokens& mtp = micro.mtp[depth];
    Tensor loss = ops::weighted_sum(ctx, head.token_losses(ctx, states[1 + depth], mtp.labels), mtp.weights);
    hidden = attach_aux_loss(ctx, hidden, loss, mtp.weight);
    Tensor mean = ctx.empty({1}, DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {loss.detach().view({1}), mean});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, mean, mtp.share, mean});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, terms[depth], mean, terms[depth]});
  }
  return hidden;
}

Tensor LmObjective::loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
                         std::span<Tensor> terms) {
  return head.loss_sum(ctx, attach_mtp_losses(ctx, head, states, micro, terms), micro.labels, micro.weights);
}

}  // namespace megatron
