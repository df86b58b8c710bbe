#include "megatron/transformer/recurrent_cache.h"

#include "megatron/ops/causal_conv.h"
#include "megatron/ops/shape.h"

namespace megatron {

Tensor RecurrentCache::convolve(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                                const SequenceRows& rows) const {
  const int64_t kept = weight.value.size(-1) - 1;
  if (!cache_ || kept == 0) return ops::causal_conv(ctx, x, weight, bias, rows);
  // Zeros stand before a sequence, in the cache as in the op.
  const Tensor last = cache_->state(ctx, layer_, 0, {kept, x.size(1)}, x.dtype());
  const Tensor all = ops::concat(ctx, std::vector{last, x}, 0);
  const Tensor y = ops::causal_conv(ctx, all, weight, bias, {.count = 1, .cu = {}});
  ctx.kernels->copy(ctx.kernel_context(), {all.slice(0, x.size(0), all.size(0)), last});
  return y.slice(0, kept, y.size(0));
}

Tensor RecurrentCache::state(RankContext& ctx, const Shape& shape, DType dtype) const {
  return cache_ ? cache_->state(ctx, layer_, 1, shape, dtype) : Tensor{};
}

}  // namespace megatron
