#include "megatron/ops/fp8_linear.h"

#include "megatron/ops/check.h"
#include "megatron/ops/linear.h"

namespace megatron::ops {
namespace {

double gemm_flops(int64_t tokens, const Tensor& weight) {
  return 2.0 * static_cast<double>(tokens) * static_cast<double>(weight.numel());
}

class Fp8LinearNode final : public Node {
 public:
  Fp8LinearNode(RankContext& ctx, const Tensor& x, const Fp8Matrix& quantized, const Weight& weight,
                const Fp8Weight& fp8, const Weight& bias)
      : x_slot_(x.grad_slot()),
        x_(!weight.trainable() ? Saved()
           : fp8.wide_wgrad    ? Saved(ctx, x)
                               : Saved(ctx, quantized.transposed)),
        x_scale_(quantized.transposed_scale),
        weight_(weight),
        bias_(bias),
        matrix_(fp8.matrix),
        gradient_(fp8.gradient),
        blocks_(fp8.blocks),
        wide_wgrad_(fp8.wide_wgrad),
        delay_(fp8.gradient_delay) {
    for (const Weight* w : {&weight_, &bias_})
      if (w->accumulator) w->accumulator->expect_use();
  }
  const char* name() const override { return "fp8_linear"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    if (blocks_)
      to_fp8_blocks(ctx, dy, gradient_, 1, dy_);
    else
      to_fp8(ctx, dy, gradient_, dy_, delay_);
    if (x_slot_) {
      Tensor dx = ctx.empty({dy.size(0), weight_.value.size(1)}, dy.dtype());
      ctx.kernels->gemm(ctx.kernel_context(), {.a = dy_.data,
                                               .b = matrix_.transposed.transpose(0, 1),
                                               .c = dx,
                                               .bias = {},
                                               .a_scale = dy_.inverse_scale,
                                               .b_scale = matrix_.transposed_scale.transpose(0, 1),
                                               .a_block_rows = dy_.block_rows,
                                               .b_block_rows = matrix_.block_rows});
      trace(ctx, "fp8_linear", Phase::BackwardData, gemm_flops(dy.size(0), weight_.value),
            {&dy_.data, &matrix_.transposed, &dx});
      tape.add_grad(ctx, x_slot_, std::move(dx));
    }
    if (bias_.accumulator) add_row_sum(ctx, "linear_bias", dy, *bias_.accumulator);
    dy_.data = dy_.inverse_scale = {};
    if (!weight_.accumulator || wide_wgrad_) dy_ = {};
    if (weight_.accumulator && wide_wgrad_) wide_dy_ = detach_contiguous(ctx, dy);
  }

  bool has_weight_step() const override { return weight_.accumulator != nullptr; }
  void backward_weight(RankContext& ctx) override {
    Tensor x = x_.get(ctx);
    const Tensor& sum = weight_.accumulator->target(ctx);
    if (wide_wgrad_) {
      x = detach_contiguous(ctx, x);
      ctx.kernels->gemm(
          ctx.kernel_context(),
          {.a = wide_dy_.transpose(0, 1), .b = x, .c = sum, .beta = weight_.accumulator->beta(), .bias = {}});
      trace(ctx, "fp8_linear", Phase::BackwardWeight, gemm_flops(x.size(0), weight_.value),
            {&wide_dy_, &x, &sum});
      return finish_weight(ctx);
    }
    ctx.kernels->gemm(ctx.kernel_context(), {.a = dy_.transposed,
                                             .b = x.transpose(0, 1),
                                             .c = sum,
                                             .beta = weight_.accumulator->beta(),
                                             .bias = {},
                                             .a_scale = dy_.transposed_scale,
                                             .b_scale = x_scale_.transpose(0, 1),
                                             .a_block_rows = dy_.block_rows,
                                             .b_block_rows = dy_.block_rows});
    trace(ctx, "fp8_linear", Phase::BackwardWeight, gemm_flops(x.size(1), weight_.value),
          {&dy_.transposed, &x, &sum});
    finish_weight(ctx);
  }

 private:
  void finish_weight(RankContext& ctx) {
    x_.reset();
    dy_ = {};
    wide_dy_ = {};
    weight_.accumulator->contribute(ctx);
  }

  GradSlot x_slot_;
  Saved x_;  // in fp8 transposed
  Tensor x_scale_;
  Weight weight_, bias_;
  Fp8Matrix matrix_, dy_;
  DType gradient_;
  Tensor wide_dy_;
  bool blocks_, wide_wgrad_;
  Fp8Delay delay_;
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

void to_fp8(RankContext& ctx, const Tensor& x, DType dtype, Fp8Matrix& result, const Fp8Delay& delay,
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
  const Tensor* again = delay.scale ? nullptr : &x;  // current scaling reads it twice
  trace(ctx, "to_fp8", Phase::Other, 2.0 * static_cast<double>(x.numel()),
        {&x, again, &result.data, &result.transposed});
}

void to_fp8_blocks(RankContext& ctx, const Tensor& x, DType dtype, int64_t block_rows, Fp8Matrix& result,
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

Tensor fp8_linear(RankContext& ctx, const Tensor& x, const Weight& weight, Fp8Weight& fp8,
                  const Weight& bias) {
  const Tensor& w = weight.value;
  check_input(ctx, "fp8_linear", "x", x);
  check_input(ctx, "fp8_linear", "weight", w);
  require(x.rank() == 2 && w.rank() == 2 && x.size(1) == w.size(1),
          "fp8_linear: x {} and weight {} do not fit; they must be [tokens, in] and [out, in]", x, w);
  check_dtype("fp8_linear", "weight", w, x.dtype());
  check_vector(ctx, "fp8_linear", "bias", bias.value, w.size(0), x.dtype());
  if (x.size(0) % 16 != 0 || x.size(1) % 16 != 0 || w.size(0) % 16 != 0 || x.numel() == 0)
    return linear(ctx, x, weight, bias);
  if (!fp8.current) {
    if (fp8.blocks)
      to_fp8_blocks(ctx, w, fp8.forward, 128, fp8.matrix, MemoryTag::Parameter);
    else
      to_fp8(ctx, w, fp8.forward, fp8.matrix, fp8.weight_delay, MemoryTag::Parameter);
    fp8.current = true;
  }
  const bool recorded = needs_grad(ctx, {&x}, {&weight, &bias});
  Fp8Matrix input;
  Fp8Delay delay = fp8.input_delay;
  if (!recorded) delay.amax = {};  // what is not trained on leaves no trace
  if (fp8.blocks)
    to_fp8_blocks(ctx, detach_contiguous(ctx, x), fp8.forward, 1, input);
  else
    to_fp8(ctx, detach_contiguous(ctx, x), fp8.forward, input, delay);
  Tensor y = ctx.empty({x.size(0), w.size(0)}, x.dtype());
  ctx.kernels->gemm(ctx.kernel_context(), {.a = input.data,
                                           .b = fp8.matrix.data.transpose(0, 1),
                                           .c = y,
                                           .bias = bias.value,
                                           .a_scale = input.inverse_scale,
                                           .b_scale = fp8.matrix.inverse_scale.transpose(0, 1),
                                           .a_block_rows = input.block_rows,
                                           .b_block_rows = fp8.matrix.block_rows,
                                           .fast_accum = !fp8.blocks});
  trace(ctx, "fp8_linear", Phase::Forward, gemm_flops(x.size(0), w), {&input.data, &fp8.matrix.data, &y});
  if (recorded) record(ctx, std::make_unique<Fp8LinearNode>(ctx, x, input, weight, fp8, bias), y);
  return y;
}

}  // namespace megatron::ops
