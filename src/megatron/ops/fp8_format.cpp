#include "megatron/ops/fp8_format.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

double gemm_flops(int64_t tokens, const Tensor& weight) {
  return 2.0 * static_cast<double>(tokens) * static_cast<double>(weight.numel());
}

class Fp8Format final : public LinearFormat {
 public:
  Fp8Format(const Fp8Weight& fp8, bool recorded) : fp8_(as_read(fp8, recorded)) {}
  const char* name() const override { return "fp8_linear"; }

  Operand quantize(RankContext& ctx, const Tensor& x, Side side) const override {
    const DType dtype = side == Side::Input ? fp8_.forward : fp8_.gradient;
    Operand result;
    if (fp8_.blocks)
      to_fp8_blocks(ctx, x, dtype, 1, result);
    else
      to_fp8(ctx, x, dtype, result, side == Side::Input ? fp8_.input_delay : fp8_.gradient_delay);
    if (fp8_.wide_wgrad) result.wide = x;
    return result;
  }

  void forward(RankContext& ctx, const Operand& x, const Weight& weight, const Tensor& bias,
               const Tensor& y) const override {
    ctx.kernels->gemm(ctx.kernel_context(), {.a = x.data,
                                             .b = fp8_.matrix.data.transpose(0, 1),
                                             .c = y,
                                             .bias = bias,
                                             .a_scale = x.inverse_scale,
                                             .b_scale = fp8_.matrix.inverse_scale.transpose(0, 1),
                                             .a_block_rows = x.block_rows,
                                             .b_block_rows = fp8_.matrix.block_rows,
                                             .fast_accum = !fp8_.blocks});
    trace(ctx, name(), Phase::Forward, gemm_flops(y.size(0), weight.value), {&x.data, &fp8_.matrix.data, &y});
  }

  void dgrad(RankContext& ctx, const Operand& dy, const Weight& weight, const Tensor& dx) const override {
    ctx.kernels->gemm(ctx.kernel_context(), {.a = dy.data,
                                             .b = fp8_.matrix.transposed.transpose(0, 1),
                                             .c = dx,
                                             .bias = {},
                                             .a_scale = dy.inverse_scale,
                                             .b_scale = fp8_.matrix.transposed_scale.transpose(0, 1),
                                             .a_block_rows = dy.block_rows,
                                             .b_block_rows = fp8_.matrix.block_rows});
    trace(ctx, name(), Phase::BackwardData, gemm_flops(dx.size(0), weight.value),
          {&dy.data, &fp8_.matrix.transposed, &dx});
  }

  void wgrad(RankContext& ctx, const Operand& dy, const Operand& x,
             GradAccumulator& accumulator) const override {
    const Tensor& sum = accumulator.target(ctx);
    if (fp8_.wide_wgrad) {
      const Tensor input = detach_contiguous(ctx, x.wide);
      ctx.kernels->gemm(
          ctx.kernel_context(),
          {.a = dy.wide.transpose(0, 1), .b = input, .c = sum, .beta = accumulator.beta(), .bias = {}});
      return trace(ctx, name(), Phase::BackwardWeight, gemm_flops(input.size(0), sum),
                   {&dy.wide, &input, &sum});
    }
    ctx.kernels->gemm(ctx.kernel_context(), {.a = dy.transposed,
                                             .b = x.transposed.transpose(0, 1),
                                             .c = sum,
                                             .beta = accumulator.beta(),
                                             .bias = {},
                                             .a_scale = dy.transposed_scale,
                                             .b_scale = x.transposed_scale.transpose(0, 1),
                                             .a_block_rows = dy.block_rows,
                                             .b_block_rows = x.block_rows});
    trace(ctx, name(), Phase::BackwardWeight, gemm_flops(x.transposed.size(1), sum),
          {&dy.transposed, &x.transposed, &sum});
  }

 private:
  Fp8Weight fp8_;
};

// As GEMMs read them: of single rows next to each other, of squares along the summed dimension, where rows
// are padded to a multiple of four.
Tensor block_scales(RankContext& ctx, int64_t rows, int64_t columns, int64_t block_rows, MemoryTag tag) {
  const int64_t across = (columns + 127) / 128;
  if (block_rows == 1) return ctx.empty({across, rows}, DType::F32, tag).transpose(0, 1);
  return ctx.full({(rows + 127) / 128, (across + 3) / 4 * 4}, DType::F32, 0, tag).slice(1, 0, across);
}

void check_matrix(const RankContext& ctx, const Tensor& x) {
  check_input(ctx, "to_fp8", "x", x);
  check_floating("to_fp8", "x", x);
  require(x.rank() == 2 && x.is_contiguous(), "to_fp8: x is {}, but it must be a contiguous matrix", x);
}

}  // namespace

Fp8Weight as_read(Fp8Weight fp8, bool recorded) {
  if (!recorded) fp8.input_delay.amax = {};
  return fp8;
}

void to_fp8(RankContext& ctx, const Tensor& x, DType dtype, Operand& result, const Fp8Delay& delay,
            MemoryTag tag) {
  check_matrix(ctx, x);
  if (!result.data) {
    Tensor scale = ctx.empty({1, 1}, DType::F32, tag);
    result = {ctx.empty(x.shape(), dtype, tag), ctx.empty({x.size(1), x.size(0)}, dtype, tag), scale, scale};
  }
  ctx.kernels->quantize(ctx.kernel_context(), {.x = x.detach(),
                                               .q = result.data,
                                               .inverse_scale = result.inverse_scale,
                                               .transposed = result.transposed,
                                               .scale = delay.scale,
                                               .amax = delay.amax});
  const Tensor again = delay.scale ? Tensor{} : x;  // current scaling reads it twice
  trace(ctx, "to_fp8", Phase::Other, 2.0 * static_cast<double>(x.numel()),
        {&x, &again, &result.data, &result.transposed});
}

void to_fp8_blocks(RankContext& ctx, const Tensor& x, DType dtype, int64_t block_rows, Operand& result,
                   MemoryTag tag) {
  check_matrix(ctx, x);
  const int64_t rows = x.size(0), columns = x.size(1);
  if (!result.data)
    result = {ctx.empty({rows, columns}, dtype, tag), ctx.empty({columns, rows}, dtype, tag),
              block_scales(ctx, rows, columns, block_rows, tag),
              block_scales(ctx, columns, rows, block_rows, tag), block_rows};
  ctx.kernels->quantize_blocks(ctx.kernel_context(), {.x = x.detach(),
                                                      .q = result.data,
                                                      .inverse_scale = result.inverse_scale,
                                                      .transposed = result.transposed,
                                                      .transposed_inverse_scale = result.transposed_scale,
                                                      .block_rows = block_rows});
  trace(ctx, "to_fp8", Phase::Other, 2.0 * static_cast<double>(x.numel()),
        {&x, &result.data, &result.transposed, &result.inverse_scale, &result.transposed_scale});
}

bool fp8_takes(int64_t rows, const Tensor& weight) {
  return rows > 0 && rows % 16 == 0 && weight.numel() > 0 && weight.size(0) % 16 == 0 &&
         weight.size(1) % 16 == 0;
}

std::shared_ptr<const LinearFormat> fp8_format(RankContext& ctx, const Tensor& weight, Fp8Weight& fp8,
                                               bool recorded) {
  if (!fp8.current) {
    if (fp8.blocks)
      to_fp8_blocks(ctx, weight, fp8.forward, 128, fp8.matrix, MemoryTag::Parameter);
    else
      to_fp8(ctx, weight, fp8.forward, fp8.matrix, fp8.weight_delay, MemoryTag::Parameter);
    fp8.current = true;
  }
  return std::make_shared<Fp8Format>(fp8, recorded);
}

}  // namespace megatron::ops
