#include "megatron/ops/quantized_weight.h"

#include "megatron/ops/check.h"
#include "megatron/ops/fp8_format.h"
#include "megatron/ops/quantize.h"

namespace megatron::ops {
namespace {

constexpr int64_t kStreamedRows = 16;   // up to them, reading the weight is all that takes time
constexpr int64_t kStreamedTwice = 48;  // up to them, reading it again is faster than widening it
constexpr int64_t kSlabElements = int64_t{32} << 20;  // of a weight that is widened at once

class QuantizedWeightFormat final : public LinearFormat {
 public:
  const char* name() const override { return "quantized_linear"; }
  Operand quantize(RankContext&, const Tensor& x, Side) const override { return {.data = x}; }

  void forward(RankContext& ctx, const Operand& x, const Weight& weight, const Tensor& bias,
               const Tensor& y) const override {
    const Tensor rows = x.data.detach();
    const int64_t count = rows.size(0), whole = count / kStreamedRows * kStreamedRows;
    const bool cuda = ctx.device.type == DeviceType::Cuda, streams = weight.value.size(1) % 128 == 0;
    if (!cuda || (streams && count <= kStreamedRows)) {
      stream(ctx, rows, weight, bias, y);
    } else if (streams && scale_rows(weight) == 128 && fp8_takes(whole, weight.value)) {
      multiply_fp8(ctx, rows.slice(0, 0, whole), weight, bias, y.slice(0, 0, whole));
      // The rows that do not fill a tile.
      if (whole < count) stream(ctx, rows.slice(0, whole, count), weight, bias, y.slice(0, whole, count));
    } else if (streams && count <= kStreamedTwice) {
      for (int64_t begin = 0; begin < count; begin += kStreamedRows) {
        const int64_t end = std::min(begin + kStreamedRows, count);
        stream(ctx, rows.slice(0, begin, end), weight, bias, y.slice(0, begin, end));
      }
    } else {
      multiply_widened(ctx, rows, weight, bias, y);
    }
    trace(ctx, name(), Phase::Forward,
          2.0 * static_cast<double>(y.numel()) * static_cast<double>(columns_of(weight)),
          {&x.data, &weight.value, &weight.scale, &y});
  }
  void dgrad(RankContext&, const Operand&, const Weight&, const Tensor&) const override { no_gradient(); }
  void wgrad(RankContext&, const Operand&, const Operand&, GradAccumulator&) const override { no_gradient(); }

 private:
  static void stream(RankContext& ctx, const Tensor& x, const Weight& weight, const Tensor& bias,
                     const Tensor& y) {
    ctx.kernels->gemm(ctx.kernel_context(), {.a = x,
                                             .b = weight.value.detach().transpose(0, 1),
                                             .c = y,
                                             .bias = bias,
                                             .b_scale = weight.scale,
                                             .b_block_rows = scale_rows(weight),
                                             .static_b = true});
  }

  static void multiply_fp8(RankContext& ctx, const Tensor& x, const Weight& weight, const Tensor& bias,
                           const Tensor& y) {
    Operand narrow;
    to_fp8_blocks(ctx, detach_contiguous(ctx, x), DType::F8E4M3, 1, narrow);
    ctx.kernels->gemm(ctx.kernel_context(), {.a = narrow.data,
                                             .b = weight.value.detach().transpose(0, 1),
                                             .c = y,
                                             .bias = bias,
                                             .a_scale = narrow.inverse_scale,
                                             .b_scale = weight.scale.transpose(0, 1),
                                             .a_block_rows = 1,
                                             .b_block_rows = 128,
                                             .static_b = true});
  }

  static void multiply_widened(RankContext& ctx, const Tensor& x, const Weight& weight, const Tensor& bias,
                               const Tensor& y) {
    const int64_t n = weight.value.size(0), block = scale_rows(weight);
    const int64_t slab = std::max<int64_t>(kSlabElements / weight.value.size(1) / 128, 1) * 128;
    for (int64_t begin = 0; begin < n; begin += slab) {
      const int64_t end = std::min(begin + slab, n);
      const Tensor scale = weight.scale.slice(0, begin / block, (end + block - 1) / block);
      const Tensor wide =
          dequantize(ctx, {weight.value.detach().slice(0, begin, end), scale, block, 128}, x.dtype());
      ctx.kernels->gemm(ctx.kernel_context(), {.a = x,
                                               .b = wide.transpose(0, 1),
                                               .c = y.slice(1, begin, end),
                                               .bias = bias ? bias.slice(0, begin, end) : Tensor{}});
    }
  }

  [[noreturn]] static void no_gradient() {
    fail("linear: gradients through a quantised weight are not built; load it without --quantization");
  }
};

}  // namespace

Weight quantize_weight(RankContext& ctx, const Tensor& weight, DType dtype, bool by_row) {
  Shape shape = weight.shape();
  const int64_t columns = shape[-1], rows = weight.numel() / std::max<int64_t>(columns, 1);
  require(columns % numbers_in_element(dtype) == 0,
          "quantize_weight: {} has an odd number of columns for int4", weight);
  const bool squares = is_fp8(dtype) && !by_row && shape.rank() == 2;
  const Quantized small =
      quantize(ctx, weight.detach().view({rows, columns}), dtype, squares ? 128 : 1, scale_columns(dtype));
  Tensor scale = small.inverse_scale;
  if (squares) {  // GEMMs want a multiple of four between rows
    const int64_t across = scale.size(1);
    Tensor padded = ctx.full({scale.size(0), (across + 3) / 4 * 4}, DType::F32, 0, MemoryTag::Parameter)
                        .slice(1, 0, across);
    ctx.kernels->copy(ctx.kernel_context(), {scale, padded});
    scale = padded;
  } else {
    Shape scales = shape;
    scales[-1] = scale.size(1);
    scale = scale.view(scales);
  }
  shape[-1] = small.data.size(1);
  return {.value = small.data.view(shape), .scale = scale, .wide = weight.dtype()};
}

int64_t columns_of(const Weight& weight) {
  return weight.value.size(-1) * (weight.scale ? numbers_in_element(weight.value.dtype()) : 1);
}

int64_t scale_rows(const Weight& weight) { return weight.scale.size(-2) == weight.value.size(-2) ? 1 : 128; }

std::shared_ptr<const LinearFormat> quantized_weight_format() {
  static const QuantizedWeightFormat format;
  return {std::shared_ptr<void>(), &format};
}

}  // namespace megatron::ops
