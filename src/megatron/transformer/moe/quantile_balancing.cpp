#include "megatron/transformer/moe/quantile_balancing.h"

#include <limits>

#include "megatron/ops/index.h"
#include "megatron/parallel/expert/row_collectives.h"

namespace megatron {
namespace {

Tensor minus(RankContext& ctx, const Tensor& a, const Tensor& b) {
  Tensor result = ctx.empty(a.shape(), a.dtype());
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Sub, a, b.expand(a.shape()), result});
  return result;
}

}  // namespace

Tensor choose_below_quantiles(RankContext& ctx, const Tensor& logits, const Tensor& beta, int64_t k) {
  return ops::top_k(ctx, minus(ctx, logits.detach(), beta.view({1, beta.numel()})), k).indices;
}

Tensor expert_quantiles(RankContext& ctx, const Tensor& logits, const Tensor& beta, int64_t k,
                        const MicrobatchShare& share) {
  const int64_t experts = logits.size(1), choices = share.all_tokens() * k;
  require(
      choices % experts == 0,
      "router: quantile balancing needs {} tokens x {} choices of a micro-batch to be a multiple of the {} "
      "experts; use another --micro-batch-size",
      share.all_tokens(), k, experts);
  const Tensor scores = logits.detach();
  const Tensor best = ops::top_k(ctx, minus(ctx, scores, beta.view({1, experts})), k + 1).values;
  const Tensor above = minus(ctx, scores, best.slice(1, k, k + 1));
  const Tensor all =
      all_gather_rows(ctx, above, share.max_rows, share.group, -std::numeric_limits<double>::infinity());
  const Tensor by_expert = ctx.empty({experts, all.size(0)}, all.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {all.transpose(0, 1), by_expert});
  const int64_t wanted = choices / experts;
  const Tensor largest = ops::top_k(ctx, by_expert, wanted + 1).values;
  Tensor quantiles = ctx.empty({experts}, largest.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {largest.select(1, wanted), quantiles});
  return quantiles;
}

}  // namespace megatron
