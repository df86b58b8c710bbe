#include "megatron/ops/grouped_linear.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

double flops_of(const Tensor& x, const Tensor& weight) {
  return 2.0 * static_cast<double>(x.size(0)) * static_cast<double>(weight.size(1) * weight.size(2));
}

class GroupedLinearNode final : public Node {
 public:
  GroupedLinearNode(RankContext& ctx, const Tensor& x, GradSlot slot, const Weight& weight,
                    const Tensor& offsets)
      : x_(weight.trainable() ? Saved(ctx, x) : Saved()), x_slot_(slot), weight_(weight), offsets_(offsets) {
    if (weight_.accumulator) weight_.accumulator->expect_use();
  }
  const char* name() const override { return "grouped_linear"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    dy_ = tape.take_grad(output());
    if (x_slot_) {
      const Tensor& w = weight_.value;
      Tensor dx = ctx.empty({dy_.size(0), w.size(2)}, dy_.dtype());
      ctx.kernels->grouped_gemm(ctx.kernel_context(), {dy_, w, dx, offsets_});
      trace(ctx, "grouped_linear", Phase::BackwardData, flops_of(dy_, w), {&dy_, &w, &dx});
      tape.add_grad(ctx, x_slot_, std::move(dx));
    }
    // What x would be made from again may be gone by the time W runs.
    if (weight_.accumulator && ctx.defer_weight_grads) x_ = Saved(ctx, x_.get(ctx));
    if (!weight_.accumulator) dy_ = {};
  }

  bool has_weight_step() const override { return weight_.accumulator != nullptr; }
  void backward_weight(RankContext& ctx) override {
    Tensor x = x_.get(ctx);
    GradAccumulator& accumulator = *weight_.accumulator;
    ctx.kernels->grouped_gemm_weight(
        ctx.kernel_context(),
        {.a = dy_, .b = x, .c = accumulator.target(ctx), .offsets = offsets_, .beta = accumulator.beta()});
    trace(ctx, "grouped_linear", Phase::BackwardWeight, flops_of(x, weight_.value),
          {&dy_, &x, &accumulator.main_grad});
    x_.reset();
    dy_ = {};
    accumulator.contribute(ctx);
  }

 private:
  Saved x_;
  GradSlot x_slot_;
  Weight weight_;
  Tensor offsets_, dy_;
};

// Expert by expert: on the CPU, where such weights are, the offsets can be read.
void multiply_int8(RankContext& ctx, const Tensor& x, const Weight& weight, const Tensor& offsets,
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

}  // namespace

Tensor grouped_linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Tensor& offsets) {
  const Tensor& w = weight.value;
  check_input(ctx, "grouped_linear", "x", x);
  check_input(ctx, "grouped_linear", "weight", w);
  check_input(ctx, "grouped_linear", "offsets", offsets);
  check_floating("grouped_linear", "x", x);
  require(x.rank() == 2 && w.rank() == 3 && x.size(1) == w.size(2),
          "grouped_linear: x {} and weight {} do not fit; they must be [rows, in] and [experts, out, in]", x,
          w);
  check_weight(ctx, "grouped_linear", weight, x.dtype());
  check_dtype("grouped_linear", "offsets", offsets, DType::I32);
  check_shape("grouped_linear", "offsets", offsets, {w.size(0) + 1});
  Tensor input = detach_contiguous(ctx, x), y = ctx.empty({x.size(0), w.size(1)}, x.dtype());
  if (weight.scale)
    multiply_int8(ctx, input, weight, offsets, y);
  else
    ctx.kernels->grouped_gemm(ctx.kernel_context(), {input, w.detach().transpose(1, 2), y, offsets});
  trace(ctx, "grouped_linear", Phase::Forward, flops_of(x, w), {&x, &w, &y});
  if (needs_grad(ctx, {&x}, {&weight}))
    record(ctx, std::make_unique<GroupedLinearNode>(ctx, input, x.grad_slot(), weight, offsets), y);
  return y;
}

}  // namespace megatron::ops
