#include "megatron/ops/shape.h"

#include "megatron/ops/check.h"
#include "megatron/ops/elementwise.h"

namespace megatron::ops {
namespace {

int dimension(const char* op, const Tensor& x, int dim) {
  int wrapped = dim < 0 ? dim + x.rank() : dim;
  require(wrapped >= 0 && wrapped < x.rank(), "{}: {} is not a dimension of {}", op, dim, x);
  return wrapped;
}

// A node whose input gradient is a view of its output gradient, or a small rearrangement of it.
template <class Back>
class ViewNode final : public Node {
 public:
  ViewNode(const char* name, GradSlot slot, Back back) : name_(name), slot_(slot), back_(std::move(back)) {}
  const char* name() const override { return name_; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    tape.add_grad(ctx, slot_, back_(ctx, tape.take_grad(output())));
  }

 private:
  const char* name_;
  GradSlot slot_;
  Back back_;
};

template <class Back>
Tensor record_view(RankContext& ctx, const char* name, const Tensor& x, Tensor y, Back back) {
  if (needs_grad(ctx, {&x}))
    record(ctx, std::make_unique<ViewNode<Back>>(name, x.grad_slot(), std::move(back)), y);
  return y;
}

class SplitNode final : public Node {
 public:
  SplitNode(const Tensor& x, std::span<const int64_t> sizes, int dim)
      : slot_(x.grad_slot()),
        shape_(x.shape()),
        sizes_(sizes.begin(), sizes.end()),
        dim_(dim),
        dtype_(x.dtype()) {}
  const char* name() const override { return "split"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dx = ctx.empty(shape_, dtype_);
    int64_t begin = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      Tensor part = dx.slice(dim_, begin, begin + sizes_[i]);
      if (Tensor grad = tape.take_grad(output(static_cast<int>(i))))
        ctx.kernels->copy(ctx.kernel_context(), {grad, part});
      else
        ctx.kernels->fill(ctx.kernel_context(), {part, 0});
      begin += sizes_[i];
    }
    trace(ctx, "split", Phase::BackwardData, 0, {&dx, &dx});
    tape.add_grad(ctx, slot_, std::move(dx));
  }

 private:
  GradSlot slot_;
  Shape shape_;
  std::vector<int64_t> sizes_;
  int dim_;
  DType dtype_;
};

class ConcatNode final : public Node {
 public:
  ConcatNode(std::span<const Tensor> tensors, int dim) : dim_(dim) {
    for (const Tensor& t : tensors) parts_.push_back({t.grad_slot(), t.size(dim)});
  }
  const char* name() const override { return "concat"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    int64_t begin = 0;
    for (const Part& part : parts_) {
      tape.add_grad(ctx, part.slot, dy.slice(dim_, begin, begin + part.size));
      begin += part.size;
    }
  }

 private:
  struct Part {
    GradSlot slot;
    int64_t size;
  };
  std::vector<Part> parts_;
  int dim_;
};

}  // namespace

Tensor view(RankContext& ctx, const Tensor& x, const Shape& shape) {
  check_input(ctx, "view", "x", x);
  return record_view(ctx, "view", x, x.detach().view(shape),
                     [shape = x.shape()](RankContext&, const Tensor& dy) { return dy.view(shape); });
}

Tensor slice(RankContext& ctx, const Tensor& x, int dim, int64_t begin, int64_t end) {
  check_input(ctx, "slice", "x", x);
  dim = dimension("slice", x, dim);
  return record_view(ctx, "slice", x, x.detach().slice(dim, begin, end),
                     [=, shape = x.shape()](RankContext& c, const Tensor& dy) {
                       Tensor dx = c.zeros(shape, dy.dtype());
                       c.kernels->copy(c.kernel_context(), {dy, dx.slice(dim, begin, end)});
                       trace(c, "slice", Phase::BackwardData, 0, {&dx, &dy, &dy});
                       return dx;
                     });
}

Tensor transpose(RankContext& ctx, const Tensor& x, int a, int b) {
  check_input(ctx, "transpose", "x", x);
  return record_view(ctx, "transpose", x, x.detach().transpose(a, b),
                     [a, b](RankContext&, const Tensor& dy) { return dy.transpose(a, b); });
}

Tensor expand(RankContext& ctx, const Tensor& x, const Shape& shape) {
  check_input(ctx, "expand", "x", x);
  return record_view(ctx, "expand", x, x.detach().expand(shape),
                     [shape = x.shape()](RankContext& c, const Tensor& dy) { return sum_to(c, dy, shape); });
}

std::vector<Tensor> split(RankContext& ctx, const Tensor& x, std::span<const int64_t> sizes, int dim) {
  check_input(ctx, "split", "x", x);
  dim = dimension("split", x, dim);
  int64_t begin = 0;
  std::vector<Tensor> parts;
  for (int64_t size : sizes) {
    require(size >= 0 && begin + size <= x.size(dim), "split: the sizes exceed dimension {} of {}", dim, x);
    parts.push_back(x.detach().slice(dim, begin, begin + size));
    begin += size;
  }
  require(begin == x.size(dim), "split: the sizes add up to {}, but dimension {} of {} has {}", begin, dim, x,
          x.size(dim));
  if (needs_grad(ctx, {&x})) {
    std::vector<Tensor*> outputs;
    for (Tensor& part : parts) outputs.push_back(&part);
    ctx.tape->record(std::make_unique<SplitNode>(x, sizes, dim), outputs);
  }
  return parts;
}

std::vector<Tensor> chunk(RankContext& ctx, const Tensor& x, int64_t count, int dim) {
  check_input(ctx, "chunk", "x", x);
  dim = dimension("chunk", x, dim);
  require(count > 0 && x.size(dim) % count == 0,
          "chunk: dimension {} of {} cannot be cut into {} equal pieces", dim, x, count);
  std::vector<int64_t> sizes(static_cast<size_t>(count), x.size(dim) / count);
  return split(ctx, x, sizes, dim);
}

Tensor contiguous(RankContext& ctx, const Tensor& x) {
  check_input(ctx, "contiguous", "x", x);
  if (x.is_contiguous()) return x;
  Tensor y = detach_contiguous(ctx, x);
  trace(ctx, "contiguous", Phase::Forward, 0, {&x, &y});
  return record_view(ctx, "contiguous", x, y, [](RankContext&, Tensor dy) { return dy; });
}

Tensor concat(RankContext& ctx, std::span<const Tensor> tensors, int dim) {
  require(!tensors.empty(), "concat: there are no tensors");
  const Tensor& first = tensors[0];
  check_input(ctx, "concat", "the first tensor", first);
  dim = dimension("concat", first, dim);
  Shape shape = first.shape();
  shape[dim] = 0;
  bool wanted = false;
  for (const Tensor& t : tensors) {
    check_input(ctx, "concat", "a tensor", t);
    check_dtype("concat", "a tensor", t, first.dtype());
    Shape fitting = first.shape();
    if (t.rank() == first.rank()) fitting[dim] = t.size(dim);
    require(t.shape() == fitting, "concat: {} and {} differ beside dimension {}", first, t, dim);
    shape[dim] += t.size(dim);
    wanted |= needs_grad(ctx, {&t});
  }
  Tensor out = ctx.empty(shape, first.dtype());
  int64_t begin = 0;
  for (const Tensor& t : tensors) {
    ctx.kernels->copy(ctx.kernel_context(), {t.detach(), out.slice(dim, begin, begin + t.size(dim))});
    begin += t.size(dim);
  }
  trace(ctx, "concat", Phase::Forward, 0, {&out, &out});
  if (wanted) record(ctx, std::make_unique<ConcatNode>(tensors, dim), out);
  return out;
}

}  // namespace megatron::ops
