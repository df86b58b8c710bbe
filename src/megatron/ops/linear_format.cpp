#include "megatron/ops/linear_format.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class PlainFormat final : public LinearFormat {
 public:
  const char* name() const override { return "linear"; }
  Operand quantize(RankContext&, const Tensor& x, Side) const override { return {.data = x}; }

  void forward(RankContext& ctx, const Operand& x, const Weight& weight, const Tensor& bias,
               const Tensor& y) const override {
    run(ctx, Phase::Forward,
        {.a = x.data.detach(),
         .b = weight.value.detach().transpose(0, 1),
         .c = y,
         .bias = bias,
         .static_b = true});
  }
  void dgrad(RankContext& ctx, const Operand& dy, const Weight& weight, const Tensor& dx) const override {
    run(ctx, Phase::BackwardData, {.a = dy.data, .b = weight.value.detach(), .c = dx});
  }
  void wgrad(RankContext& ctx, const Operand& dy, const Operand& x,
             GradAccumulator& accumulator) const override {
    run(ctx, Phase::BackwardWeight,
        {.a = dy.data.transpose(0, 1),
         .b = x.data,
         .c = accumulator.target(ctx),
         .beta = accumulator.beta()});
  }

 private:
  void run(RankContext& ctx, Phase phase, const GemmArgs& args) const {
    ctx.kernels->gemm(ctx.kernel_context(), args);
    trace(ctx, name(), phase, 2.0 * static_cast<double>(args.a.numel()) * static_cast<double>(args.c.size(1)),
          {&args.a, &args.b, &args.c});
  }
};

}  // namespace

std::shared_ptr<const LinearFormat> plain_format() {
  static const PlainFormat format;
  return {std::shared_ptr<void>(), &format};
}

Operand Operand::rows(RankContext& ctx, int64_t begin, int64_t count) const {
  if (begin == 0 && count == data.size(0)) return *this;
  Operand part{
      .data = data.slice(0, begin, begin + count), .inverse_scale = inverse_scale, .block_rows = block_rows};
  if (block_rows == 1) {  // GEMMs read the scales of their own rows alone, next to each other
    part.inverse_scale = ctx.empty({inverse_scale.size(1), count}, DType::F32).transpose(0, 1);
    ctx.kernels->copy(ctx.kernel_context(),
                      {inverse_scale.slice(0, begin, begin + count), part.inverse_scale});
  }
  return part;
}

}  // namespace megatron::ops
