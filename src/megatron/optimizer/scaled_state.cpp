#include "megatron/optimizer/scaled_state.h"

namespace megatron {
namespace {

// The scale is found for e4m3, whose largest value is 448; fp16 reaches 65504.
constexpr DType kFormat = DType::F8E4M3;
constexpr double kHalfFactor = 64;

Tensor scratch(RankContext& ctx, const Shape& shape, DType dtype) {
  return ctx.empty(shape, dtype, MemoryTag::Workspace);
}

}  // namespace

ScaledState::ScaledState(RankContext& ctx, const Shape& shape, DType dtype)
    : values_(ctx.empty(shape, dtype, MemoryTag::Optimizer)),
      inverse_(ctx.empty({1, 1}, DType::F32, MemoryTag::Optimizer)) {
  write(ctx, ctx.zeros(shape, DType::F32, MemoryTag::Workspace));
}

Tensor ScaledState::read(RankContext& ctx) const {
  const auto kernels = ctx.kernel_context();
  Tensor wide = scratch(ctx, values_.shape(), DType::F32);
  const Tensor row = wide.view({1, wide.numel()});
  if (is_fp8(values_.dtype())) {
    ctx.kernels->dequantize(kernels, {.q = values_.view(row.shape()), .inverse_scale = inverse_, .x = row});
    return wide;
  }
  ctx.kernels->axpby(kernels, {.alpha = 1 / kHalfFactor, .a = values_, .out = wide});
  ctx.kernels->binary(kernels, {Binary::Mul, row, inverse_.expand(row.shape()), row});
  return wide;
}

// The kernel of one block tells the largest magnitude, that of blocks the power of two for it.
void ScaledState::find_scale(RankContext& ctx, const Tensor& row) const {
  const auto kernels = ctx.kernel_context();
  const Tensor amax = ctx.zeros({1, 1}, DType::F32, MemoryTag::Workspace);
  ctx.kernels->quantize(kernels, {.x = row,
                                  .q = scratch(ctx, row.shape(), kFormat),
                                  .inverse_scale = scratch(ctx, {1, 1}, DType::F32),
                                  .amax = amax});
  ctx.kernels->quantize_blocks(kernels, {.x = amax,
                                         .q = scratch(ctx, {1, 1}, kFormat),
                                         .inverse_scale = inverse_,
                                         .transposed = scratch(ctx, {1, 1}, kFormat),
                                         .transposed_inverse_scale = scratch(ctx, {1, 1}, DType::F32)});
}

void ScaledState::write(RankContext& ctx, const Tensor& wide) const {
  const auto kernels = ctx.kernel_context();
  const Tensor row = wide.view({1, wide.numel()});
  find_scale(ctx, row);
  const Tensor scale = scratch(ctx, {1, 1}, DType::F32);
  ctx.kernels->fill(kernels, {scale, 1});
  ctx.kernels->binary(kernels, {Binary::Div, scale, inverse_, scale});
  if (is_fp8(values_.dtype())) {
    ctx.kernels->quantize(
        kernels, {.x = row, .q = values_.view(row.shape()), .inverse_scale = inverse_, .scale = scale});
    return;
  }
  const Tensor scaled = scratch(ctx, row.shape(), DType::F32);
  ctx.kernels->binary(kernels, {Binary::Mul, row, scale.expand(row.shape()), scaled});
  ctx.kernels->axpby(kernels, {.alpha = kHalfFactor, .a = scaled, .out = values_.view(row.shape())});
}

}  // namespace megatron
