#include "megatron/ops/check.h"
#include "megatron/ops/grouped_format.h"

namespace megatron::ops {
namespace {

double gemm_flops(int64_t rows, const Tensor& weight) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(weight.size(1) * weight.size(2));
}

// With a scale for each matrix of x [groups, rows, columns], or for the rows of each expert.
void to_grouped_fp8(RankContext& ctx, const Tensor& x, const Tensor& offsets, DType dtype, Operand& result,
                    const Fp8Delay& delay, MemoryTag tag) {
  require(x.is_contiguous(), "to_grouped_fp8: {} is not contiguous", x);
  const int64_t groups = offsets ? offsets.size(0) - 1 : x.size(0);
  if (!result.data) {
    const Tensor scale = ctx.empty({groups}, DType::F32, tag);
    const Shape turned = offsets ? Shape{x.size(1), x.size(0)} : Shape{groups, x.size(2), x.size(1)};
    result = {ctx.empty(x.shape(), dtype, tag), ctx.empty(turned, dtype, tag), scale, scale};
  }
  const auto of_groups = [](const Tensor& t) { return t ? t.select(1, 0) : t; };
  ctx.kernels->quantize_grouped(ctx.kernel_context(), {.x = x.detach(),
                                                       .offsets = offsets,
                                                       .q = result.data,
                                                       .transposed = result.transposed,
                                                       .inverse_scale = result.inverse_scale,
                                                       .scale = of_groups(delay.scale),
                                                       .amax = of_groups(delay.amax)});
  const Tensor again = delay.scale ? Tensor{} : x;  // current scaling reads it twice
  trace(ctx, "to_fp8", Phase::Other, 2.0 * static_cast<double>(x.numel()),
        {&x, &again, &result.data, &result.transposed});
}

// The matrices of all experts, each in blocks of 128 × 128 of its own.
void to_fp8_squares(RankContext& ctx, const Tensor& weight, DType dtype, Operand& result) {
  const int64_t experts = weight.size(0), out = weight.size(1), in = weight.size(2);
  constexpr MemoryTag kTag = MemoryTag::Parameter;
  const auto scales = [&](int64_t rows, int64_t columns) {
    return ctx.empty({experts, (rows + 127) / 128, (columns + 127) / 128}, DType::F32, kTag);
  };
  if (!result.data)
    result = {ctx.empty(weight.shape(), dtype, kTag), ctx.empty({experts, in, out}, dtype, kTag),
              scales(out, in), scales(in, out), 128};
  for (int64_t e = 0; e < experts; ++e) {
    Operand one{result.data.select(0, e), result.transposed.select(0, e), result.inverse_scale.select(0, e),
                result.transposed_scale.select(0, e), 128};
    to_fp8_blocks(ctx, weight.detach().select(0, e), dtype, 128, one, kTag);
  }
}

class GroupedFp8Format final : public LinearFormat {
 public:
  GroupedFp8Format(const Fp8Weight& fp8, const Tensor& offsets, bool recorded)
      : offsets_(offsets), fp8_(as_read(fp8, recorded)) {}
  const char* name() const override { return "grouped_fp8_linear"; }

  // Experts begin at multiples of 128 rows where blocks have scales: blocks of the whole are those of
  // experts.
  Operand quantize(RankContext& ctx, const Tensor& x, Side side) const override {
    const DType dtype = side == Side::Input ? fp8_.forward : fp8_.gradient;
    Operand result;
    if (fp8_.blocks)
      to_fp8_blocks(ctx, x, dtype, 1, result);
    else
      to_grouped_fp8(ctx, x, offsets_, dtype, result,
                     side == Side::Input ? fp8_.input_delay : fp8_.gradient_delay, MemoryTag::Activation);
    if (fp8_.wide_wgrad) result.wide = x;
    return result;
  }

  void forward(RankContext& ctx, const Operand& x, const Weight& weight, const Tensor&,
               const Tensor& y) const override {
    multiply(ctx, x, fp8_.matrix.data, fp8_.matrix.inverse_scale, y);
    trace(ctx, name(), Phase::Forward, gemm_flops(y.size(0), weight.value), {&x.data, &fp8_.matrix.data, &y});
  }

  void dgrad(RankContext& ctx, const Operand& dy, const Weight& weight, const Tensor& dx) const override {
    multiply(ctx, dy, fp8_.matrix.transposed, fp8_.matrix.transposed_scale, dx);
    trace(ctx, name(), Phase::BackwardData, gemm_flops(dx.size(0), weight.value),
          {&dy.data, &fp8_.matrix.transposed, &dx});
  }

  void wgrad(RankContext& ctx, const Operand& dy, const Operand& x,
             GradAccumulator& accumulator) const override {
    const Tensor& sum = accumulator.target(ctx);
    const auto form = dy.weight_form();
    const auto rows_first = [&](const Tensor& t) {
      return fp8_.wide_wgrad ? detach_contiguous(ctx, t) : t.transpose(0, 1);
    };
    const Tensor a = rows_first(dy.*form), b = rows_first(x.*form);
    GroupedGemmWeightArgs args{.a = a, .b = b, .c = sum, .offsets = offsets_, .beta = accumulator.beta()};
    if (!fp8_.wide_wgrad)
      args.a_scale = dy.transposed_scale, args.b_scale = x.transposed_scale, args.blocks = fp8_.blocks;
    ctx.kernels->grouped_gemm_weight(ctx.kernel_context(), args);
    trace(ctx, fp8_.wide_wgrad ? "grouped_linear" : name(), Phase::BackwardWeight, gemm_flops(a.size(0), sum),
          {&a, &b, &sum});
  }

 private:
  // y = x · matrices[expert]ᵀ
  void multiply(RankContext& ctx, const Operand& x, const Tensor& matrices, const Tensor& scale,
                const Tensor& y) const {
    ctx.kernels->grouped_gemm(ctx.kernel_context(), {.a = x.data,
                                                     .b = matrices.transpose(1, 2),
                                                     .c = y,
                                                     .offsets = offsets_,
                                                     .a_scale = x.inverse_scale,
                                                     .b_scale = fp8_.blocks ? scale.transpose(1, 2) : scale,
                                                     .blocks = fp8_.blocks});
  }

  Tensor offsets_;
  Fp8Weight fp8_;
};

}  // namespace

int64_t grouped_fp8_alignment(const Fp8Weight* fp8, const Shape& weight) {
  if (!fp8 || weight.numel() == 0 || weight[1] % 16 != 0 || weight[2] % 16 != 0) return 1;
  return fp8->blocks ? 128 : 16;
}

bool grouped_fp8_takes(int64_t rows, const Fp8Weight* fp8, const Shape& weight) {
  const int64_t alignment = grouped_fp8_alignment(fp8, weight);
  return alignment > 1 && rows > 0 && rows % alignment == 0;
}

std::shared_ptr<const LinearFormat> grouped_fp8_format(RankContext& ctx, const Tensor& weight, Fp8Weight& fp8,
                                                       const Tensor& offsets, bool recorded) {
  if (!fp8.current) {
    if (fp8.blocks)
      to_fp8_squares(ctx, weight, fp8.forward, fp8.matrix);
    else
      to_grouped_fp8(ctx, weight, {}, fp8.forward, fp8.matrix, fp8.weight_delay, MemoryTag::Parameter);
    fp8.current = true;
  }
  return std::make_shared<GroupedFp8Format>(fp8, offsets, recorded);
}

}  // namespace megatron::ops
