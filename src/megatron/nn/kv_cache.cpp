#include "megatron/nn/kv_cache.h"

namespace megatron {
namespace {

Tensor put(RankContext& ctx, Tensor& all, const Tensor& added, int64_t begin, int64_t capacity) {
  const int64_t end = begin + added.size(0);
  require(end <= capacity, "decoding: {} tokens do not fit into a cache for {}", end, capacity);
  if (!all) all = ctx.empty({capacity, added.size(1), added.size(2)}, added.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {added, all.slice(0, begin, end)});
  return all.slice(0, 0, end);
}

}  // namespace

KvCache::Pair KvCache::append(RankContext& ctx, int64_t layer, const Pair& added) {
  Pair& held = layers_[layer];
  return {put(ctx, held.keys, added.keys, length_, capacity_),
          put(ctx, held.values, added.values, length_, capacity_)};
}

Tensor KvCache::state(RankContext& ctx, int64_t layer, int which, const Shape& shape, DType dtype) {
  Tensor& held = states_[{layer, which}];
  if (!held) held = ctx.zeros(shape, dtype);
  return held;
}

}  // namespace megatron
