#include "megatron/ops/matmul.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

Tensor transposed(const Tensor& x, bool yes = true) { return yes ? x.transpose(-1, -2) : x; }

Tensor run_gemm(RankContext& ctx, Phase phase, const Tensor& a, const Tensor& b, double alpha) {
  Shape shape = a.shape();
  shape[-1] = b.size(-1);
  Tensor c = ctx.empty(shape, a.dtype());
  ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = b, .c = c, .alpha = alpha});
  trace(ctx, "matmul", phase, 2.0 * static_cast<double>(c.numel()) * static_cast<double>(a.size(-1)),
        {&a, &b, &c});
  return c;
}

// Each matrix must have unit stride one way or the other.
Tensor fit_for_gemm(RankContext& ctx, const Tensor& x) {
  bool fits = x.stride(-1) == 1 || x.stride(-2) == 1;
  return fits ? x.detach() : detach_contiguous(ctx, x);
}

class MatmulNode final : public Node {
 public:
  MatmulNode(RankContext& ctx, const Tensor& a, GradSlot a_slot, const Tensor& b, GradSlot b_slot,
             const MatmulOptions& options)
      : options_(options), a_slot_(a_slot), b_slot_(b_slot) {
    if (b_slot_) a_ = Saved(ctx, a);
    if (a_slot_) b_ = Saved(ctx, b);
  }
  const char* name() const override { return "matmul"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dc = tape.take_grad(output());
    auto multiply = [&](const Tensor& x, const Tensor& y) {
      return run_gemm(ctx, Phase::BackwardData, x, y, options_.alpha);
    };
    if (a_slot_) {
      Tensor b = transposed(b_.get(ctx), options_.transpose_b);
      tape.add_grad(ctx, a_slot_,
                    options_.transpose_a ? multiply(b, transposed(dc)) : multiply(dc, transposed(b)));
    }
    if (b_slot_) {
      Tensor a = transposed(a_.get(ctx), options_.transpose_a);
      tape.add_grad(ctx, b_slot_,
                    options_.transpose_b ? multiply(transposed(dc), a) : multiply(transposed(a), dc));
    }
    a_.reset();
    b_.reset();
  }

 private:
  MatmulOptions options_;
  GradSlot a_slot_, b_slot_;
  Saved a_, b_;
};

}  // namespace

Tensor matmul(RankContext& ctx, const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  check_input(ctx, "matmul", "a", a);
  check_input(ctx, "matmul", "b", b);
  check_floating("matmul", "a", a);
  check_dtype("matmul", "b", b, a.dtype());
  bool ranks = (a.rank() == 2 || a.rank() == 3) && a.rank() == b.rank();
  require(ranks && (a.rank() == 2 || a.size(0) == b.size(0)),
          "matmul: a {} and b {} must be two matrices, or two batches of as many matrices", a, b);
  Tensor left = fit_for_gemm(ctx, a), right = fit_for_gemm(ctx, b);
  Tensor x = transposed(left, options.transpose_a), y = transposed(right, options.transpose_b);
  require(x.size(-1) == y.size(-2), "matmul: a {}{} and b {}{} do not fit: {} columns meet {} rows", a,
          options.transpose_a ? " (transposed)" : "", b, options.transpose_b ? " (transposed)" : "",
          x.size(-1), y.size(-2));
  Tensor c = run_gemm(ctx, Phase::Forward, x, y, options.alpha);
  if (needs_grad(ctx, {&a, &b}))
    record(ctx, std::make_unique<MatmulNode>(ctx, left, a.grad_slot(), right, b.grad_slot(), options), c);
  return c;
}

}  // namespace megatron::ops
