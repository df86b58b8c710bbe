#include "megatron/ops/wide_linear.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

constexpr int64_t kParts = 3;  // bf16 numbers of eight bits each that hold the 24 of a fp32 number

void gemm(RankContext& ctx, Phase phase, const Tensor& a, const Tensor& b, const Tensor& c) {
  ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = b, .c = c});
  trace(ctx, "wide_linear", phase, 2.0 * static_cast<double>(c.numel()) * static_cast<double>(a.size(1)),
        {&a, &b, &c});
}

Tensor in_dtype(RankContext& ctx, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x.detach();
  const Tensor y = ctx.empty(x.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {x.detach(), y});
  return y;
}

// [rows, 3 · columns] in bf16 of fp32 x: what rounding it leaves, what rounding the rest leaves, and the rest
// of that.
Tensor split(RankContext& ctx, const Tensor& x) {
  const Tensor parts = ctx.empty({x.size(0), kParts, x.size(1)}, DType::BF16);
  Tensor rest = x.detach();
  for (int64_t i = 0; i < kParts; ++i) {
    const Tensor part = in_dtype(ctx, rest, DType::BF16);
    ctx.kernels->copy(ctx.kernel_context(), {part, parts.select(1, i)});
    if (i + 1 == kParts) break;
    const Tensor next = ctx.empty(x.shape(), x.dtype());
    ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 1, .a = rest, .beta = -1, .b = part, .out = next});
    rest = next;
  }
  trace(ctx, "wide_linear_split", Phase::BackwardData, 0, {&x, &parts});
  return parts.view({x.size(0), kParts * x.size(1)});
}

class WideLinearNode final : public Node {
 public:
  WideLinearNode(RankContext& ctx, const Tensor& x, GradSlot slot, const Weight& weight)
      : slot_(slot), weight_(weight) {
    if (!weight.trainable()) return;
    x_ = Saved(ctx, x);
    weight.accumulator->expect_use();
  }
  const char* name() const override { return "wide_linear"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    const Tensor dy = tape.take_grad(output());
    const Tensor& w = weight_.value;
    // fp16 has too few exponents for the small parts: its operands are widened.
    const bool in_parts = w.dtype() == DType::BF16;
    const Tensor a = in_parts ? split(ctx, dy) : dy;
    if (slot_) {
      Tensor dx = ctx.empty({dy.size(0), w.size(1)}, in_parts ? w.dtype() : dy.dtype());
      gemm(ctx, Phase::BackwardData, a, in_parts ? repeated(ctx, w) : in_dtype(ctx, w, dy.dtype()), dx);
      tape.add_grad(ctx, slot_, in_dtype(ctx, dx, w.dtype()));
    }
    if (weight_.trainable()) {
      const Tensor x = x_.get(ctx);
      Tensor dw = ctx.empty({a.size(1), w.size(1)}, dy.dtype());
      gemm(ctx, Phase::BackwardWeight, a.transpose(0, 1), in_parts ? x : in_dtype(ctx, x, dy.dtype()), dw);
      accumulate(ctx, dw, w.size(0));
    }
    x_.reset();
  }

 private:
  static Tensor repeated(RankContext& ctx, const Tensor& w) {
    const Tensor all = ctx.empty({kParts, w.size(0), w.size(1)}, w.dtype());
    ctx.kernels->copy(ctx.kernel_context(),
                      {w.detach().view({1, w.size(0), w.size(1)}).expand(all.shape()), all});
    return all.view({kParts * w.size(0), w.size(1)});
  }
  // Adds the gradients of all parts, the smallest first, and then to the weight's, which rounds once.
  void accumulate(RankContext& ctx, const Tensor& dw, int64_t rows) {
    Tensor sum = dw.slice(0, dw.size(0) - rows, dw.size(0));
    for (int64_t end = dw.size(0) - rows; end > 0; end -= rows)
      ctx.kernels->axpby(ctx.kernel_context(),
                         {.alpha = 1, .a = dw.slice(0, end - rows, end), .beta = 1, .b = sum, .out = sum});
    GradAccumulator& accumulator = *weight_.accumulator;
    const Tensor& target = accumulator.target(ctx);
    ctx.kernels->axpby(
        ctx.kernel_context(),
        {.alpha = 1, .a = sum, .beta = 1, .b = accumulator.has_value() ? target : Tensor{}, .out = target});
    accumulator.contribute(ctx);
  }

  GradSlot slot_;
  Weight weight_;
  Saved x_;
};

}  // namespace

Tensor wide_linear(RankContext& ctx, const Tensor& x, const Weight& weight) {
  check_input(ctx, "wide_linear", "x", x);
  check_input(ctx, "wide_linear", "weight", weight.value);
  check_floating("wide_linear", "x", x);
  check_dtype("wide_linear", "weight", weight.value, x.dtype());
  const Tensor& w = weight.value;
  require(x.rank() == 2 && w.rank() == 2 && x.size(1) == w.size(1),
          "wide_linear: x {} must be [tokens, in] and the weight {} [out, in]", x, w);
  const Tensor input = detach_contiguous(ctx, x);
  Tensor y = ctx.empty({x.size(0), w.size(0)}, accumulation_dtype(x.dtype()));
  gemm(ctx, Phase::Forward, input, w.detach().transpose(0, 1), y);
  if (needs_grad(ctx, {&x}, {&weight}))
    record(ctx, std::make_unique<WideLinearNode>(ctx, input, x.grad_slot(), weight), y);
  return y;
}

}  // namespace megatron::ops
