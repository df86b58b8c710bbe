#include "megatron/transformer/moe/topk_routing.h"

#include <limits>

#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/index.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/softmax.h"

namespace megatron {
namespace {

constexpr double kTiny = 1e-20;  // keeps a sum of scores that are all 0 from dividing by it

Tensor scores_of(RankContext& ctx, const Tensor& logits, RouterScore score) {
  switch (score) {
    case RouterScore::softmax:
      return ops::softmax(ctx, logits);
    case RouterScore::sigmoid:
      return ops::activation(ctx, Unary::Sigmoid, logits);
    case RouterScore::sqrtsoftplus:
      return ops::activation(ctx, Unary::Sqrt, ops::activation(ctx, Unary::Softplus, logits));
  }
  fail("router: unknown score function");
}

Tensor made_to_sum_to_one(RankContext& ctx, const Tensor& scores) {
  Tensor sum = ops::sum(ctx, scores, 1, true);
  return ops::div(ctx, scores, ops::add(ctx, sum, ctx.full({1}, scores.dtype(), kTiny)));
}

// −∞ for the experts of groups that are closed to a token.
Tensor without_closed_groups(RankContext& ctx, const Tensor& scores, const ChoiceOptions& o) {
  int64_t tokens = scores.size(0), size = scores.size(1) / o.groups;
  DType dtype = scores.dtype();
  Tensor best = ops::top_k(ctx, scores.view({tokens * o.groups, size}), o.group_score_k).values;
  Tensor of_group = ops::sum(ctx, best, 1).view({tokens, o.groups});
  Tensor open = routing_map(ctx, ops::top_k(ctx, of_group, o.open_groups).indices, o.groups, dtype);
  Tensor is_open =
      ops::compare(ctx, Comparison::Less, ctx.zeros({1}, dtype), open.view({tokens, o.groups, 1}));
  Tensor closed = ctx.full({1}, dtype, -std::numeric_limits<double>::infinity());
  return ops::where(ctx, is_open, scores.view({tokens, o.groups, size}), closed).view(scores.shape());
}

// −∞ for experts beyond the width.
Tensor without_others(RankContext& ctx, const Tensor& scores, const Tensor& width) {
  const Tensor active = ops::compare(ctx, Comparison::Less, ctx.zeros({1}, width.dtype()), width);
  const Tensor never = ctx.full({1}, scores.dtype(), -std::numeric_limits<double>::infinity());
  return ops::where(ctx, active, scores, never);
}

Tensor chosen(RankContext& ctx, const Tensor& scores, const ChoiceOptions& o, const Tensor& bias,
              const Tensor& replayed, const Tensor& width = {}) {
  Tensor plain = scores.detach();
  if (bias) plain = ops::add(ctx, plain, width ? ops::mul(ctx, bias, width) : bias);
  if (width) plain = without_others(ctx, plain, width);
  if (o.groups > 0) plain = without_closed_groups(ctx, plain, o);
  return with_replayed(ctx, ops::top_k(ctx, plain, o.k).indices, replayed);
}

}  // namespace

Tensor with_replayed(RankContext& ctx, const Tensor& experts, const Tensor& replayed) {
  if (!replayed) return experts;
  const Tensor free = ops::compare(ctx, Comparison::Less, replayed, ctx.full({1}, DType::I64, 0));
  return ops::where(ctx, free, experts, replayed);
}

ChoiceOptions ChoiceOptions::of(const ModelConfig& config) {
  ChoiceOptions o{.score = config.moe_router_score_function,
                  .pre_softmax = config.moe_router_pre_softmax,
                  .k = config.moe_router_topk,
                  .groups = config.moe_router_num_groups,
                  .open_groups = config.moe_router_group_topk,
                  .group_score_k = config.moe_router_group_score_topk,
                  .scaling = config.moe_router_topk_scaling_factor.value_or(1),
                  .normalize = config.moe_router_normalize_topk};
  if (o.groups == 0) return o;
  int64_t size = config.num_moe_experts / o.groups;
  if (o.group_score_k == 0) o.group_score_k = std::max<int64_t>(1, o.k / o.open_groups);
  o.group_score_k = std::min(o.group_score_k, size);
  return o;
}

Routing choose_experts(RankContext& ctx, const Tensor& logits, const ChoiceOptions& o, const Tensor& bias,
                       const Tensor& replayed, const Tensor& width) {
  require(!width || o.score != RouterScore::softmax, "router: a width multiplies scores, not a softmax");
  Routing result;
  if (o.score == RouterScore::softmax && !o.pre_softmax) {
    result.experts = chosen(ctx, logits, o, bias, replayed);
    result.probs = ops::softmax(ctx, ops::gather_columns(ctx, logits, result.experts));
  } else {
    Tensor scores = scores_of(ctx, logits, o.score);
    const Tensor active = width ? ops::cast(ctx, width, scores.dtype()) : width;
    if (active) scores = ops::mul(ctx, scores, active);
    result.experts = chosen(ctx, scores, o, bias, replayed, active.detach());
    result.probs = ops::gather_columns(ctx, scores, result.experts);
    if (o.score != RouterScore::softmax && o.k > 1 && o.normalize)
      result.probs = made_to_sum_to_one(ctx, result.probs);
  }
  if (o.scaling != 1) result.probs = ops::scale(ctx, result.probs, o.scaling);
  return result;
}

Tensor aux_loss_scores(RankContext& ctx, const Tensor& logits, RouterScore score) {
  Tensor scores = scores_of(ctx, logits, score);
  return score == RouterScore::softmax ? scores : made_to_sum_to_one(ctx, scores);
}

Tensor routing_map(RankContext& ctx, const Tensor& indices, int64_t experts, DType dtype) {
  Tensor map = ctx.empty({indices.size(0), experts}, dtype);
  ctx.kernels->scatter_columns(ctx.kernel_context(), {ctx.full(indices.shape(), dtype, 1), indices, map});
  return map;
}

}  // namespace megatron
