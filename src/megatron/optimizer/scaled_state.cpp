#include "megatron/optimizer/scaled_state.h"

#include "megatron/base/float_types.h"

namespace megatron {
namespace {

// The scale is found for e4m3, whose largest value is 448; fp16 reaches 65504.
constexpr DType kFormat = DType::F8E4M3;
constexpr double kHalfFactor = 64;

Tensor scratch(RankContext& ctx, const Shape& shape, DType dtype) {
  return ctx.empty(shape, dtype, MemoryTag::Workspace);
}

// As read() computes them: products with powers of two, exact in any order.
template <class Narrow>
void unpack_scaled(std::span<const std::byte* const> parts, float scale, std::span<float> values) {
  const auto* narrow = reinterpret_cast<const Narrow*>(parts[0]);
  constexpr float factor = std::is_same_v<Narrow, fp16> ? static_cast<float>(1 / kHalfFactor) : 1.f;
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(narrow[i]) * factor * scale;
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

PackedState ScaledState::packed() const {
  const auto unpack = values_.dtype() == DType::F16      ? unpack_scaled<fp16>
                      : values_.dtype() == DType::F8E4M3 ? unpack_scaled<fp8_e4m3>
                                                         : unpack_scaled<fp8_e5m2>;
  return {
      {{values_}, inverse_, unpack},
      [state = *this](RankContext& ctx, int64_t /*begin*/, const Tensor& wide) {
        ctx.kernels->copy(ctx.kernel_context(), {state.read(ctx).view(wide.shape()), wide});
      },
      [state = *this](RankContext& ctx, int64_t /*begin*/, const Tensor& wide) { state.write(ctx, wide); },
      true};
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
