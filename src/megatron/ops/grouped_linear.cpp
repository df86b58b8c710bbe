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
  check_dtype("grouped_linear", "weight", w, x.dtype());
  check_dtype("grouped_linear", "offsets", offsets, DType::I32);
  check_shape("grouped_linear", "offsets", offsets, {w.size(0) + 1});
  Tensor input = detach_contiguous(ctx, x), y = ctx.empty({x.size(0), w.size(1)}, x.dtype());
  ctx.kernels->grouped_gemm(ctx.kernel_context(), {input, w.detach().transpose(1, 2), y, offsets});
  trace(ctx, "grouped_linear", Phase::Forward, flops_of(x, w), {&x, &w, &y});
  if (needs_grad(ctx, {&x}, {&weight}))
    record(ctx, std::make_unique<GroupedLinearNode>(ctx, input, x.grad_slot(), weight, offsets), y);
  return y;
}

}  // namespace megatron::ops
