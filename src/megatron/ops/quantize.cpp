#include "megatron/ops/quantize.h"

#include "megatron/ops/check.h"

namespace megatron::ops {

Quantized quantize(RankContext& ctx, const Tensor& x, DType dtype, int64_t block_rows,
                   int64_t block_columns) {
  check_input(ctx, "quantize", "x", x);
  check_floating("quantize", "x", x);
  require(
      !ctx.tracks(x),
      "quantize: x {} is on the tape, but rounding has no gradient; detach() it, or quantise inside a node "
      "that passes the gradient straight through",
      x);
  require(x.rank() == 2 && x.is_contiguous(), "quantize: x is {}, but it must be a contiguous matrix", x);
  const bool int4 = dtype == kInt4;
  require(is_fp8(dtype) || dtype == DType::I8 || (int4 && ctx.device.is_cpu()),
          "quantize: {} is not built for {}; use int8 or an fp8 dtype", dtype, ctx.device);
  require(!int4 || (block_rows == 1 && block_columns == scale_columns(kInt4)),
          "quantize: int4 has a scale for each 1 × {}, not for {} × {}", scale_columns(kInt4), block_rows,
          block_columns);
  auto blocks = [](int64_t size, int64_t block) { return block ? (size + block - 1) / block : 1; };
  Quantized result{
      ctx.empty({x.size(0), blocks(x.size(1), numbers_in_element(dtype))}, dtype),
      ctx.empty({blocks(x.size(0), block_rows), blocks(x.size(1), block_columns)}, scale_dtype(dtype)),
      block_rows, block_columns, x.size(1)};
  ctx.kernels->quantize(ctx.kernel_context(),
                        {x.detach(), result.data, result.inverse_scale, block_rows, block_columns});
  trace(ctx, "quantize", Phase::Other, 2.0 * static_cast<double>(x.numel()), {&x, &x, &result.data});
  return result;
}

Tensor dequantize(RankContext& ctx, const Quantized& x, DType dtype) {
  check_input(ctx, "dequantize", "data", x.data);
  const int64_t columns = x.columns ? x.columns : x.data.size(1) * numbers_in_element(x.data.dtype());
  Tensor y = ctx.empty({x.data.size(0), columns}, dtype);
  check_floating("dequantize", "the result", y);
  ctx.kernels->dequantize(ctx.kernel_context(), {x.data, x.inverse_scale, y, x.block_rows, x.block_columns});
  trace(ctx, "dequantize", Phase::Other, static_cast<double>(y.numel()), {&x.data, &y});
  return y;
}

}  // namespace megatron::ops
