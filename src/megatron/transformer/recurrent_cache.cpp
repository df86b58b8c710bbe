#include "megatron/transformer/recurrent_cache.h"

#include "megatron/ops/causal_conv.h"
#include "megatron/ops/index.h"
#include "megatron/ops/shape.h"

namespace megatron {
namespace {

// What is kept of the step's sequences, a row each; zeros where nothing came before.
Tensor rows_before(RankContext& ctx, const Tensor& pool, const SequenceBatch& sequences) {
  return ops::gather_rows(ctx, pool.view({pool.size(0), pool.numel() / pool.size(0)}),
                          sequences.states_before);
}

}  // namespace

void RecurrentState::keep(RankContext& ctx) const {
  if (value) ops::put_rows(ctx, value, slots, pool);
}

Tensor RecurrentCache::convolve(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                                const SequenceRows& rows) const {
  const int64_t kept = weight.value.size(-1) - 1;
  if (!cache_ || kept == 0) return ops::causal_conv(ctx, x, weight, bias, rows);
  const ConvolutionRows& order = sequences_->convolutions.at(kept);
  const Tensor& pool = cache_->inputs(layer_);
  const Tensor before = rows_before(ctx, pool, *sequences_).view({sequences_->count * kept, x.size(1)});
  const Tensor parts[] = {before, x};
  const Tensor joined = ops::gather_rows(ctx, ops::concat(ctx, parts, 0), order.joined);
  const Tensor y = ops::causal_conv(ctx, joined, weight, bias, {.count = sequences_->count, .cu = order.cu});
  const Tensor last = ops::gather_rows(ctx, joined, order.last);
  ops::put_rows(ctx, last.view({sequences_->count, kept, x.size(1)}), sequences_->states, pool);
  return ops::gather_rows(ctx, y, order.fresh);
}

RecurrentState RecurrentCache::state(RankContext& ctx) const {
  if (!cache_) return {};
  const Tensor& pool = cache_->states(layer_);
  Shape shape = pool.shape();
  shape[0] = sequences_->count;
  return {rows_before(ctx, pool, *sequences_).view(shape), pool, sequences_->states};
}

}  // namespace megatron
