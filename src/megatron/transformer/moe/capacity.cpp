#include "megatron/transformer/moe/capacity.h"

#include <cmath>

#include "megatron/ops/check.h"
#include "megatron/ops/index.h"
#include "megatron/parallel/expert/row_collectives.h"
#include "megatron/transformer/moe/topk_routing.h"

namespace megatron {
namespace {

// [tokens, k], larger for tokens that come first: by position, then by sequence.
Tensor earliness(RankContext& ctx, const MicrobatchShare& share, const Tensor& positions, int64_t k) {
  auto kernels = ctx.kernel_context();
  Tensor early = ctx.empty({share.rows}, DType::F64), place = ctx.empty({share.rows}, DType::F64);
  auto count = static_cast<double>(share.sequences);
  double last = count * static_cast<double>(share.all_tokens());
  for (int64_t row = 0; row < share.rows;) {  // the run of a sequence
    int64_t sequence = (share.begin + row) / share.per_sequence();
    int64_t end = std::min(share.rows, (sequence + 1) * share.per_sequence() - share.begin);
    ctx.kernels->fill(kernels, {early.slice(0, row, end), last - static_cast<double>(sequence)});
    row = end;
  }
  ctx.kernels->copy(kernels, {positions, place});
  ctx.kernels->axpby(kernels, {.alpha = 1, .a = early, .beta = -count, .b = place, .out = early});
  Tensor wide = ctx.empty({share.rows, k}, DType::F64);
  ctx.kernels->copy(kernels, {early.view({share.rows, 1}).expand({share.rows, k}), wide});
  return wide;
}

}  // namespace

int64_t expert_capacity(int64_t tokens, int64_t k, int64_t experts, double factor) {
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(tokens * k) / static_cast<double>(experts) * factor));
}

Tensor within_capacity(RankContext& ctx, const Routing& routing, int64_t experts,
                       const CapacityOptions& options, const MicrobatchShare& share, const Tensor& positions,
                       const Tensor& token_index) {
  int64_t k = routing.experts.size(1), rows = share.rows;
  int64_t capacity = expert_capacity(share.all_tokens(), k, experts, options.factor);
  if (capacity >= share.all_tokens()) return routing.experts;

  // Every rank learns how much each token of the micro-batch wants each expert, and finds the same answer.
  Tensor wish =
      options.policy == TokenDropPolicy::probs ? routing.probs.detach() : earliness(ctx, share, positions, k);
  auto kernels = ctx.kernel_context();
  Tensor wishes = ctx.empty({rows, experts}, wish.dtype());
  ctx.kernels->scatter_columns(kernels, {wish, routing.experts, wishes});
  wishes = all_gather_rows(ctx, wishes, share.max_rows, share.group, -1);
  if (token_index) {  // in the order of one rank
    Tensor all_indices = all_gather_rows(ctx, token_index.view({rows, 1}), share.max_rows, share.group, -1);
    wishes = ops::scatter_add_rows(ctx, wishes, all_indices.view({all_indices.size(0)}), share.all_tokens());
  }
  int64_t all = wishes.size(0);
  Tensor by_expert = ctx.empty({experts, all}, wish.dtype());
  ctx.kernels->copy(kernels, {wishes.transpose(0, 1), by_expert});
  Tensor taken = routing_map(ctx, ops::top_k(ctx, by_expert, capacity).indices, all, wish.dtype());

  int64_t first = share.group.rank() * share.max_rows;
  Tensor own = ctx.empty({rows, experts}, wish.dtype()), kept = ctx.empty({rows, k}, wish.dtype());
  if (token_index)
    own = ops::gather_rows(ctx, ops::detach_contiguous(ctx, taken.transpose(0, 1)), token_index);
  else
    ctx.kernels->copy(kernels, {taken.slice(1, first, first + rows).transpose(0, 1), own});
  ctx.kernels->gather_columns(kernels, {own, routing.experts, kept});
  Tensor is_kept = ctx.empty({rows, k}, DType::Bool), result = ctx.empty({rows, k}, DType::I64);
  Tensor zero = ctx.zeros({1}, wish.dtype()), none = ctx.full({1}, DType::I64, -1);
  ctx.kernels->compare(kernels, {Comparison::Less, zero.expand(kept.shape()), kept, is_kept});
  ctx.kernels->where(kernels, {is_kept, routing.experts, none.expand(kept.shape()), result});
  return result;
}

}  // namespace megatron
