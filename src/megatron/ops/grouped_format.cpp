#include "megatron/ops/grouped_format.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

double flops_of(const Tensor& x, const Tensor& weight) {
  return 2.0 * static_cast<double>(x.size(0)) * static_cast<double>(weight.size(1) * weight.size(2));
}

// Expert by expert: on the CPU, where such weights are, the offsets can be read.
void multiply_quantized(RankContext& ctx, const Tensor& x, const Weight& weight, const Tensor& offsets,
                        const Tensor& y) {
  const std::vector<int32_t> ends = ctx.to_vector<int32_t>(offsets);
  for (int64_t e = 0; e < weight.value.size(0); ++e) {
    const int64_t begin = ends[static_cast<size_t>(e)], end = ends[static_cast<size_t>(e) + 1];
    if (begin == end) continue;
    ctx.kernels->gemm(ctx.kernel_context(), {.a = x.slice(0, begin, end),
                                             .b = weight.value.detach().select(0, e).transpose(0, 1),
                                             .c = y.slice(0, begin, end),
                                             .b_scale = weight.scale.select(0, e)});
  }
}

class GroupedFormat final : public LinearFormat {
 public:
  explicit GroupedFormat(const Tensor& offsets) : offsets_(offsets) {}
  const char* name() const override { return "grouped_linear"; }
  Operand quantize(RankContext&, const Tensor& x, Side) const override { return {.data = x}; }

  void forward(RankContext& ctx, const Operand& x, const Weight& weight, const Tensor&,
               const Tensor& y) const override {
    const Tensor& w = weight.value;
    if (weight.scale)
      multiply_quantized(ctx, x.data, weight, offsets_, y);
    else
      ctx.kernels->grouped_gemm(ctx.kernel_context(), {x.data, w.detach().transpose(1, 2), y, offsets_});
    trace(ctx, name(), Phase::Forward, 2.0 * static_cast<double>(x.data.numel() * y.size(1)),
          {&x.data, &w, &y});
  }
  void dgrad(RankContext& ctx, const Operand& dy, const Weight& weight, const Tensor& dx) const override {
    const Tensor& w = weight.value;
    ctx.kernels->grouped_gemm(ctx.kernel_context(), {dy.data, w, dx, offsets_});
    trace(ctx, name(), Phase::BackwardData, flops_of(dy.data, w), {&dy.data, &w, &dx});
  }
  void wgrad(RankContext& ctx, const Operand& dy, const Operand& x,
             GradAccumulator& accumulator) const override {
    const Tensor& sum = accumulator.target(ctx);
    ctx.kernels->grouped_gemm_weight(
        ctx.kernel_context(),
        {.a = dy.data, .b = x.data, .c = sum, .offsets = offsets_, .beta = accumulator.beta()});
    trace(ctx, name(), Phase::BackwardWeight, flops_of(x.data, sum), {&dy.data, &x.data, &sum});
  }

 private:
  Tensor offsets_;
};

}  // namespace

std::shared_ptr<const LinearFormat> grouped_format(const Tensor& offsets) {
  return std::make_shared<GroupedFormat>(offsets);
}

}  // namespace megatron::ops
