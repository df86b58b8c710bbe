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
         .b_scale = weight.scale});
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

const LinearFormat& plain_format() {
  static const PlainFormat format;
  return format;
}

}  // namespace megatron::ops
