#pragma once

#include "megatron/ops/check.h"
#include "megatron/ops/linear_adapter.h"

namespace megatron::testing {

// y = g ∘ (x · wᵀ + scale · (x · aᵀ) · bᵀ) with a [rank, in], b [out, rank], and g [out] where it is given:
// LoRA, and DoRA whose row norms are held fixed.
class LowRankAdapter final : public ops::LinearAdapter {
 public:
  LowRankAdapter(const Weight& a, const Weight& b, const Weight& g, double scale)
      : a_(a), b_(b), g_(g), scale_(scale) {}
  bool trainable() const override { return a_.trainable(); }
  void expect_use() const override {
    for (const Weight* w : {&a_, &b_, &g_})
      if (w->accumulator) w->accumulator->expect_use();
  }

  void forward(RankContext& ctx, const Tensor& x, int64_t, const Tensor& y) const override {
    multiply(ctx, multiply(ctx, x, a_.value.transpose(0, 1)), b_.value.transpose(0, 1), y, scale_, 1);
    if (g_.defined())
      ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, y, g_.value.expand(y.shape()), y});
  }
  Tensor gradient(RankContext& ctx, const Tensor& dy) const override {
    if (!g_.defined()) return dy;
    Tensor scaled = ctx.empty_like(dy);
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, dy, g_.value.expand(dy.shape()), scaled});
    return scaled;
  }
  void dgrad(RankContext& ctx, const Tensor& dy, int64_t, const Tensor& dx) const override {
    multiply(ctx, multiply(ctx, dy, b_.value), a_.value, dx, scale_, 1);
  }
  void wgrad(RankContext& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight) const override {
    const Tensor dyt = dy.transpose(0, 1), low = multiply(ctx, x, a_.value.transpose(0, 1)),
                 dlow = multiply(ctx, dy, b_.value);
    add(ctx, multiply(ctx, dlow.transpose(0, 1), x, {}, scale_), a_);
    add(ctx, multiply(ctx, dyt, low, {}, scale_), b_);
    if (!g_.defined()) return;
    // Σ over rows of dy ∘ y before g, by way of the whole matrices: nothing of y is kept.
    Tensor adapted = ctx.empty(weight.shape(), dy.dtype());
    ctx.kernels->copy(ctx.kernel_context(), {weight.detach(), adapted});
    multiply(ctx, b_.value, a_.value, adapted, scale_, 1);
    Tensor both = multiply(ctx, dyt, x), sums = ctx.empty({weight.size(0)}, dy.dtype());
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, both, adapted, both});
    ctx.kernels->reduce(ctx.kernel_context(), {.kind = Reduction::Sum,
                                               .x = both,
                                               .out = sums,
                                               .outer = weight.size(0),
                                               .n = weight.size(1),
                                               .inner = 1});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Div, sums, g_.value, sums});
    add(ctx, sums, g_);
  }

 private:
  static Tensor multiply(RankContext& ctx, const Tensor& a, const Tensor& b, Tensor c = {}, double alpha = 1,
                         double beta = 0) {
    if (!c) c = ctx.empty({a.size(0), b.size(1)}, a.dtype());
    ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = b, .c = c, .alpha = alpha, .beta = beta});
    return c;
  }
  static void add(RankContext& ctx, const Tensor& grad, const Weight& weight) {
    ops::accumulate_grad(ctx, grad, weight);
  }

  Weight a_, b_, g_;
  double scale_;
};

}  // namespace megatron::testing
