#include "megatron/ops/qkv_cache.h"

#include "megatron/ops/check.h"

namespace megatron::ops {

Tensor split_qkv_to_cache(RankContext& ctx, const Tensor& qkv, const QkvShape& shape,
                          const Rotation& rotation, const Tensor& slots, const Tensor& keys,
                          const Tensor& values) {
  if (!ctx.device.is_cuda() || needs_grad(ctx, {&qkv})) return {};
  check_projection(ctx, "split_qkv_to_cache", qkv, shape, rotation);
  check_input(ctx, "split_qkv_to_cache", "slots", slots);
  check_dtype("split_qkv_to_cache", "slots", slots, DType::I64);
  check_shape("split_qkv_to_cache", "slots", slots, {qkv.size(0)});
  for (const Tensor* pool : {&keys, &values}) {
    check_input(ctx, "split_qkv_to_cache", "cache", *pool);
    const bool small = keys.dtype() == DType::F8E4M3;  // kernels/fp8_pages.h
    check_dtype("split_qkv_to_cache", "cache", *pool, small ? keys.dtype() : qkv.dtype());
    check_shape("split_qkv_to_cache", "cache", *pool, {keys.size(0), shape.groups, shape.head_dim});
  }
  Tensor q = ctx.empty({qkv.size(0), shape.heads, shape.head_dim}, qkv.dtype());
  if (!ctx.kernels->qkv_cache(ctx.kernel_context(), {.qkv = qkv.detach(),
                                                     .q = q,
                                                     .keys = keys,
                                                     .values = values,
                                                     .slots = slots,
                                                     .cos = rotation.cos,
                                                     .sin = rotation.sin,
                                                     .interleaved = rotation.interleaved}))
    return {};
  ctx.trace("split_qkv", Phase::Forward, rotation.cos ? 3.0 * static_cast<double>(qkv.numel()) : 0.0,
            2.0 * static_cast<double>(qkv.bytes()));
  return q;
}

}  // namespace megatron::ops
