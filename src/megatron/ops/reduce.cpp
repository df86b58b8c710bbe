#include "megatron/ops/reduce.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

// x seen as [outer, n, inner], reduced over n.
struct Extent {
  int64_t outer = 1, n = 1, inner = 1;
};

Extent extent_of(const Shape& shape, int dim) {
  Extent extent{.n = shape[dim]};
  for (int d = 0; d < shape.rank(); ++d) (d < dim ? extent.outer : extent.inner) *= d == dim ? 1 : shape[d];
  return extent;
}

Tensor reduce(RankContext& ctx, Reduction kind, const Tensor& x, const Extent& e, const Shape& shape) {
  Tensor out = ctx.empty(shape, x.dtype());
  ctx.kernels->reduce(ctx.kernel_context(),
                      {.kind = kind, .x = x, .out = out, .outer = e.outer, .n = e.n, .inner = e.inner});
  return out;
}

Tensor scaled(RankContext& ctx, const Tensor& x, double alpha) {
  Tensor out = ctx.empty(x.shape(), x.dtype());
  ctx.kernels->axpby(ctx.kernel_context(), {.alpha = alpha, .a = x, .out = out});
  return out;
}

class SumNode final : public Node {
 public:
  SumNode(const Tensor& x, const Shape& kept, double factor)
      : slot_(x.grad_slot()), shape_(x.shape()), kept_(kept), factor_(factor) {}
  const char* name() const override { return "sum"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    if (factor_ != 1) dy = scaled(ctx, dy, factor_);
    tape.add_grad(ctx, slot_, dy.view(kept_).expand(shape_));
  }

 private:
  GradSlot slot_;
  Shape shape_, kept_;
  double factor_;
};

class ExtremeNode final : public Node {
 public:
  ExtremeNode(RankContext& ctx, const Tensor& x, GradSlot slot, const Tensor& best, const Extent& extent,
              const Shape& kept)
      : slot_(slot), x_(ctx, x), best_(ctx, best), extent_(extent), kept_(kept) {}
  const char* name() const override { return "max"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()).view(kept_), x = x_.get(ctx);
    Tensor chosen = ctx.empty(x.shape(), DType::Bool), ones = ctx.empty(x.shape(), x.dtype());
    Tensor best = best_.get(ctx).view(kept_).expand(x.shape());
    const KernelTable& kernels = *ctx.kernels;
    kernels.compare(ctx.kernel_context(), {Comparison::Equal, x, best, chosen});
    kernels.copy(ctx.kernel_context(), {chosen, ones});
    Tensor count = reduce(ctx, Reduction::Sum, ones, extent_, kept_);
    kernels.binary(ctx.kernel_context(), {Binary::Div, dy, count, count});
    kernels.binary(ctx.kernel_context(), {Binary::Mul, ones, count.expand(x.shape()), ones});
    trace(ctx, "max", Phase::BackwardData, 3.0 * static_cast<double>(x.numel()), {&x, &ones, &ones, &ones});
    tape.add_grad(ctx, slot_, std::move(ones));
    x_.reset();
    best_.reset();
  }

 private:
  GradSlot slot_;
  Saved x_, best_;
  Extent extent_;
  Shape kept_;
};

Tensor run(RankContext& ctx, const char* name, Reduction kind, const Tensor& x, const Extent& extent,
           const Shape& shape, const Shape& kept) {
  require(extent.n > 0 || kind == Reduction::Sum, "{}: {} has nothing to reduce", name, x);
  Tensor input = detach_contiguous(ctx, x), out = reduce(ctx, kind, input, extent, shape);
  trace(ctx, name, Phase::Forward, static_cast<double>(x.numel()), {&x, &out});
  if (!needs_grad(ctx, {&x})) return out;
  if (kind == Reduction::Sum || kind == Reduction::Mean) {
    double factor = kind == Reduction::Mean ? 1.0 / static_cast<double>(extent.n) : 1.0;
    record(ctx, std::make_unique<SumNode>(x, kept, factor), out);
  } else {
    record(ctx, std::make_unique<ExtremeNode>(ctx, input, x.grad_slot(), out, extent, kept), out);
  }
  return out;
}

Tensor over_dimension(RankContext& ctx, const char* name, Reduction kind, const Tensor& x, int dim,
                      bool keep) {
  check_input(ctx, name, "x", x);
  check_floating(name, "x", x);
  int wrapped = dim < 0 ? dim + x.rank() : dim;
  require(wrapped >= 0 && wrapped < x.rank(), "{}: {} is not a dimension of {}", name, dim, x);
  Shape kept = x.shape(), dropped = x.shape();
  kept[wrapped] = 1;
  dropped.erase(wrapped);
  return run(ctx, name, kind, x, extent_of(x.shape(), wrapped), keep ? kept : dropped, kept);
}

Tensor over_all(RankContext& ctx, const char* name, Reduction kind, const Tensor& x) {
  check_input(ctx, name, "x", x);
  check_floating(name, "x", x);
  Shape kept = x.shape();
  for (int d = 0; d < kept.rank(); ++d) kept[d] = 1;
  return run(ctx, name, kind, x, {.n = x.numel()}, {1}, kept);
}

}  // namespace

Tensor sum(RankContext& ctx, const Tensor& x, int dim, bool keep) {
  return over_dimension(ctx, "sum", Reduction::Sum, x, dim, keep);
}
Tensor mean(RankContext& ctx, const Tensor& x, int dim, bool keep) {
  return over_dimension(ctx, "mean", Reduction::Mean, x, dim, keep);
}
Tensor sum(RankContext& ctx, const Tensor& x) { return over_all(ctx, "sum", Reduction::Sum, x); }
Tensor mean(RankContext& ctx, const Tensor& x) { return over_all(ctx, "mean", Reduction::Mean, x); }
Tensor max(RankContext& ctx, const Tensor& x, int dim, bool keep) {
  return over_dimension(ctx, "max", Reduction::Max, x, dim, keep);
}
Tensor min(RankContext& ctx, const Tensor& x, int dim, bool keep) {
  return over_dimension(ctx, "min", Reduction::Min, x, dim, keep);
}

}  // namespace megatron::ops
