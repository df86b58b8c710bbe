#include "megatron/ops/elementwise.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

Tensor run_binary(RankContext& ctx, Binary kind, const Tensor& a, const Tensor& b, const Shape& shape) {
  Tensor out = ctx.empty(shape, a.dtype());
  ctx.kernels->binary(ctx.kernel_context(), {kind, a.detach().expand(shape), b.detach().expand(shape), out});
  return out;
}

Tensor run_scale(RankContext& ctx, const Tensor& a, double alpha) {
  Tensor out = ctx.empty(a.shape(), a.dtype());
  ctx.kernels->axpby(ctx.kernel_context(), {.alpha = alpha, .a = a, .out = out});
  return out;
}

class BinaryNode final : public Node {
 public:
  BinaryNode(RankContext& ctx, Binary kind, const char* name, const Tensor& a, const Tensor& b)
      : kind_(kind), name_(name), slots_{a.grad_slot(), b.grad_slot()}, shapes_{a.shape(), b.shape()} {
    if (kind == Binary::Mul || kind == Binary::Div) {
      if (slots_[1]) saved_[0] = Saved(ctx, a);
      if (slots_[0] || kind == Binary::Div) saved_[1] = Saved(ctx, b);
    }
  }
  const char* name() const override { return name_; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    for (int i = 0; i < 2; ++i) {
      if (!slots_[i]) continue;
      Tensor grad = sum_to(ctx, gradient(ctx, i, dy), shapes_[i]);
      if (!grad.storage().same(dy.storage()))  // a sum passes its gradient on as it is
        trace(ctx, name_, Phase::BackwardData, static_cast<double>(dy.numel()), {&dy, &grad});
      tape.add_grad(ctx, slots_[i], std::move(grad));
    }
    for (Saved& saved : saved_) saved.reset();
  }

 private:
  Tensor gradient(RankContext& ctx, int operand, const Tensor& dy) {
    const Shape& shape = dy.shape();
    switch (kind_) {
      case Binary::Sub:
        return operand == 0 ? dy : run_scale(ctx, dy, -1);
      case Binary::Mul:
        return run_binary(ctx, Binary::Mul, dy, saved_[1 - operand].get(ctx), shape);
      case Binary::Div: {
        Tensor quotient = run_binary(ctx, Binary::Div, dy, saved_[1].get(ctx), shape);
        if (operand == 0) return quotient;
        Tensor ratio = run_binary(ctx, Binary::Div, saved_[0].get(ctx), saved_[1].get(ctx), shape);
        return run_scale(ctx, run_binary(ctx, Binary::Mul, quotient, ratio, shape), -1);
      }
      default:
        return dy;
    }
  }

  Binary kind_;
  const char* name_;
  GradSlot slots_[2];
  Shape shapes_[2];
  Saved saved_[2];
};

Tensor binary(RankContext& ctx, Binary kind, const char* name, const Tensor& a, const Tensor& b) {
  check_input(ctx, name, "the first operand", a);
  check_input(ctx, name, "the second operand", b);
  check_floating(name, "the first operand", a);
  check_dtype(name, "the second operand", b, a.dtype());
  Tensor out = run_binary(ctx, kind, a, b, broadcast_shape(name, a, b));
  trace(ctx, name, Phase::Forward, static_cast<double>(out.numel()), {&a, &b, &out});
  if (needs_grad(ctx, {&a, &b})) record(ctx, std::make_unique<BinaryNode>(ctx, kind, name, a, b), out);
  return out;
}

class AxpbyNode final : public Node {
 public:
  AxpbyNode(double alpha, GradSlot a, double beta, GradSlot b) : factors_{alpha, beta}, slots_{a, b} {}
  const char* name() const override { return "axpby"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    for (int i = 0; i < 2; ++i) {
      if (!slots_[i]) continue;
      Tensor grad = factors_[i] == 1 ? dy : run_scale(ctx, dy, factors_[i]);
      trace(ctx, "axpby", Phase::BackwardData, static_cast<double>(dy.numel()), {&dy, &grad});
      tape.add_grad(ctx, slots_[i], std::move(grad));
    }
  }

 private:
  double factors_[2];
  GradSlot slots_[2];
};

class WhereNode final : public Node {
 public:
  WhereNode(const Tensor& condition, const Tensor& a, const Tensor& b)
      : condition_(condition), slots_{a.grad_slot(), b.grad_slot()}, shapes_{a.shape(), b.shape()} {}
  const char* name() const override { return "where"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    Tensor zero = ctx.zeros({1}, dy.dtype()).expand(dy.shape());
    for (int i = 0; i < 2; ++i) {
      if (!slots_[i]) continue;
      Tensor grad = ctx.empty(dy.shape(), dy.dtype());
      ctx.kernels->where(ctx.kernel_context(), {condition_, i ? zero : dy, i ? dy : zero, grad});
      trace(ctx, "where", Phase::BackwardData, 0, {&condition_, &dy, &grad});
      tape.add_grad(ctx, slots_[i], sum_to(ctx, grad, shapes_[i]));
    }
    condition_ = {};
  }

 private:
  Tensor condition_;
  GradSlot slots_[2];
  Shape shapes_[2];
};

class CastNode final : public Node {
 public:
  explicit CastNode(const Tensor& x) : dtype_(x.dtype()), slot_(x.grad_slot()) {}
  const char* name() const override { return "cast"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    Tensor dx = ctx.empty(dy.shape(), dtype_);
    ctx.kernels->copy(ctx.kernel_context(), {dy, dx});
    trace(ctx, "cast", Phase::BackwardData, 0, {&dy, &dx});
    tape.add_grad(ctx, slot_, std::move(dx));
  }

 private:
  DType dtype_;
  GradSlot slot_;
};

}  // namespace

Shape broadcast_shape(const char* op, const Tensor& a, const Tensor& b) {
  const Shape &longer = a.rank() >= b.rank() ? a.shape() : b.shape(),
              &shorter = a.rank() >= b.rank() ? b.shape() : a.shape();
  Shape result = longer;
  for (int d = 1; d <= shorter.rank(); ++d) {
    int64_t x = longer[-d], y = shorter[-d];
    require(x == y || x == 1 || y == 1, "{}: the shapes of {} and {} do not fit: sizes {} and {} differ", op,
            a, b, x, y);
    result[-d] = x == 1 ? y : x;
  }
  return result;
}

Tensor sum_to(RankContext& ctx, const Tensor& grad, const Shape& shape) {
  if (grad.shape() == shape) return grad;
  Tensor sum = detach_contiguous(ctx, grad);
  int added = grad.rank() - shape.rank();
  for (int d = 0; d < grad.rank(); ++d) {
    bool repeated = d < added || (shape[d - added] == 1 && grad.size(d) != 1);
    if (!repeated) continue;
    Shape reduced = sum.shape();
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < d; ++i) outer *= reduced[i];
    for (int i = d + 1; i < reduced.rank(); ++i) inner *= reduced[i];
    int64_t n = reduced[d];
    reduced[d] = 1;
    Tensor next = ctx.empty(reduced, sum.dtype());
    ctx.kernels->reduce(
        ctx.kernel_context(),
        {.kind = Reduction::Sum, .x = sum, .out = next, .outer = outer, .n = n, .inner = inner});
    trace(ctx, "sum_to", Phase::BackwardData, static_cast<double>(sum.numel()), {&sum, &next});
    sum = next;
  }
  return sum.view(shape);
}

Tensor add(RankContext& ctx, const Tensor& a, const Tensor& b) {
  return binary(ctx, Binary::Add, "add", a, b);
}
Tensor sub(RankContext& ctx, const Tensor& a, const Tensor& b) {
  return binary(ctx, Binary::Sub, "sub", a, b);
}
Tensor mul(RankContext& ctx, const Tensor& a, const Tensor& b) {
  return binary(ctx, Binary::Mul, "mul", a, b);
}
Tensor div(RankContext& ctx, const Tensor& a, const Tensor& b) {
  return binary(ctx, Binary::Div, "div", a, b);
}

Tensor axpby(RankContext& ctx, double alpha, const Tensor& a, double beta, const Tensor& b) {
  check_input(ctx, "axpby", "a", a);
  check_floating("axpby", "a", a);
  check_input(ctx, "axpby", "b", b);
  check_shape("axpby", "b", b, a.shape());
  check_dtype("axpby", "b", b, a.dtype());
  Tensor out = ctx.empty(a.shape(), a.dtype());
  ctx.kernels->axpby(ctx.kernel_context(),
                     {alpha, detach_contiguous(ctx, a), beta, detach_contiguous(ctx, b), out});
  trace(ctx, "axpby", Phase::Forward, 3.0 * static_cast<double>(out.numel()), {&a, &b, &out});
  if (needs_grad(ctx, {&a, &b}))
    record(ctx, std::make_unique<AxpbyNode>(alpha, a.grad_slot(), beta, b.grad_slot()), out);
  return out;
}

Tensor scale(RankContext& ctx, const Tensor& a, double alpha) {
  check_input(ctx, "scale", "the tensor", a);
  check_floating("scale", "the tensor", a);
  Tensor out = run_scale(ctx, detach_contiguous(ctx, a), alpha);
  trace(ctx, "scale", Phase::Forward, static_cast<double>(out.numel()), {&a, &out});
  if (needs_grad(ctx, {&a}))
    record(ctx, std::make_unique<AxpbyNode>(alpha, a.grad_slot(), 0, GradSlot{}), out);
  return out;
}

Tensor compare(RankContext& ctx, Comparison kind, const Tensor& a, const Tensor& b) {
  check_input(ctx, "compare", "the first operand", a);
  check_input(ctx, "compare", "the second operand", b);
  check_dtype("compare", "the second operand", b, a.dtype());
  Tensor out = ctx.empty(broadcast_shape("compare", a, b), DType::Bool);
  ctx.kernels->compare(ctx.kernel_context(),
                       {kind, a.detach().expand(out.shape()), b.detach().expand(out.shape()), out});
  trace(ctx, "compare", Phase::Forward, 0, {&a, &b, &out});
  return out;
}

Tensor where(RankContext& ctx, const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_input(ctx, "where", "condition", condition);
  check_dtype("where", "condition", condition, DType::Bool);
  check_input(ctx, "where", "a", a);
  check_input(ctx, "where", "b", b);
  check_dtype("where", "b", b, a.dtype());
  Tensor out = ctx.empty(broadcast_shape("where", a, b), a.dtype());
  Shape shape = broadcast_shape("where", condition, out);
  if (shape != out.shape()) out = ctx.empty(shape, a.dtype());
  Tensor chosen = condition.expand(shape);
  ctx.kernels->where(ctx.kernel_context(), {chosen, a.detach().expand(shape), b.detach().expand(shape), out});
  trace(ctx, "where", Phase::Forward, 0, {&condition, &a, &b, &out});
  if (needs_grad(ctx, {&a, &b})) record(ctx, std::make_unique<WhereNode>(chosen, a, b), out);
  return out;
}

Tensor cast(RankContext& ctx, const Tensor& x, DType dtype) {
  check_input(ctx, "cast", "x", x);
  if (x.dtype() == dtype) return x;
  Tensor out = ctx.empty(x.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {x.detach(), out});
  trace(ctx, "cast", Phase::Forward, 0, {&x, &out});
  if (is_floating(dtype) && needs_grad(ctx, {&x})) record(ctx, std::make_unique<CastNode>(x), out);
  return out;
}

}  // namespace megatron::ops
