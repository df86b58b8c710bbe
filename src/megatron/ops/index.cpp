#include "megatron/ops/index.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class GatherRowsNode final : public Node {
 public:
  GatherRowsNode(const Tensor& x, const Tensor& ids) : slot_(x.grad_slot()), ids_(ids), rows_(x.size(0)) {}
  const char* name() const override { return "gather_rows"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()), dx = ctx.empty({rows_, dy.size(1)}, dy.dtype());
    ctx.kernels->scatter_add_rows(ctx.kernel_context(),
                                  {.source = dy, .ids = ids_, .out = dx, .accumulate = false});
    trace(ctx, "gather_rows", Phase::BackwardData, static_cast<double>(dy.numel()), {&dy, &dx});
    tape.add_grad(ctx, slot_, std::move(dx));
  }

 private:
  GradSlot slot_;
  Tensor ids_;
  int64_t rows_;
};

class ScatterAddRowsNode final : public Node {
 public:
  ScatterAddRowsNode(const Tensor& source, const Tensor& ids) : slot_(source.grad_slot()), ids_(ids) {}
  const char* name() const override { return "scatter_add_rows"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()), dx = ctx.empty({ids_.size(0), dy.size(1)}, dy.dtype());
    ctx.kernels->gather_rows(ctx.kernel_context(), {dy, ids_, dx});
    trace(ctx, "scatter_add_rows", Phase::BackwardData, 0, {&dx, &dx});
    tape.add_grad(ctx, slot_, std::move(dx));
  }

 private:
  GradSlot slot_;
  Tensor ids_;
};

// Of gather_columns and of the values of top_k.
class GatherColumnsNode final : public Node {
 public:
  GatherColumnsNode(const char* name, const Tensor& x, const Tensor& indices)
      : name_(name), slot_(x.grad_slot()), indices_(indices), columns_(x.size(1)) {}
  const char* name() const override { return name_; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output()), dx = ctx.empty({dy.size(0), columns_}, dy.dtype());
    ctx.kernels->scatter_columns(ctx.kernel_context(), {dy, indices_, dx});
    trace(ctx, name_, Phase::BackwardData, static_cast<double>(dy.numel()), {&dy, &dx});
    tape.add_grad(ctx, slot_, std::move(dx));
  }

 private:
  const char* name_;
  GradSlot slot_;
  Tensor indices_;
  int64_t columns_;
};

void check_matrix(const RankContext& ctx, const char* op, const char* what, const Tensor& x) {
  check_input(ctx, op, what, x);
  check_floating(op, what, x);
  require(x.rank() == 2 && x.is_contiguous(), "{}: {} is {}, but it must be a contiguous matrix", op, what,
          x);
}

void check_indices(const RankContext& ctx, const char* op, const char* what, const Tensor& ids, int rank) {
  check_input(ctx, op, what, ids);
  check_dtype(op, what, ids, DType::I64);
  require(ids.rank() == rank && ids.is_contiguous(), "{}: {} are {}, but they must have rank {}, contiguous",
          op, what, ids, rank);
}

}  // namespace

Tensor gather_rows(RankContext& ctx, const Tensor& x, const Tensor& ids) {
  check_matrix(ctx, "gather_rows", "x", x);
  check_indices(ctx, "gather_rows", "ids", ids, 1);
  Tensor y = ctx.empty({ids.size(0), x.size(1)}, x.dtype());
  ctx.kernels->gather_rows(ctx.kernel_context(), {x.detach(), ids, y});
  trace(ctx, "gather_rows", Phase::Forward, 0, {&y, &y});
  if (needs_grad(ctx, {&x})) record(ctx, std::make_unique<GatherRowsNode>(x, ids), y);
  return y;
}

Tensor scatter_add_rows(RankContext& ctx, const Tensor& source, const Tensor& ids, int64_t rows) {
  check_matrix(ctx, "scatter_add_rows", "source", source);
  check_indices(ctx, "scatter_add_rows", "ids", ids, 1);
  require(ids.size(0) == source.size(0), "scatter_add_rows: {} ids for the rows of {}", ids.size(0), source);
  Tensor y = ctx.empty({rows, source.size(1)}, source.dtype());
  ctx.kernels->scatter_add_rows(ctx.kernel_context(),
                                {.source = source.detach(), .ids = ids, .out = y, .accumulate = false});
  trace(ctx, "scatter_add_rows", Phase::Forward, static_cast<double>(source.numel()), {&source, &y});
  if (needs_grad(ctx, {&source})) record(ctx, std::make_unique<ScatterAddRowsNode>(source, ids), y);
  return y;
}

void put_rows(RankContext& ctx, const Tensor& source, const Tensor& ids, const Tensor& out) {
  check_input(ctx, "put_rows", "source", source);
  check_input(ctx, "put_rows", "out", out);
  check_indices(ctx, "put_rows", "ids", ids, 1);
  const bool rounds = out.dtype() == DType::F8E4M3 && source.dtype() != out.dtype();  // kernels/fp8_pages.h
  if (!rounds) check_dtype("put_rows", "source", source, out.dtype());
  if (rounds) {
    check_floating("put_rows", "source", source);
    require(source.rank() == 3, "put_rows: rows of fp8 have heads, not the shape {}", source.shape());
  }
  const auto whole_rows = [](const Tensor& x) { return x.size(0) == 0 || x.select(0, 0).is_contiguous(); };
  require(source.rank() == out.rank() && ids.size(0) == source.size(0) &&
              source.numel() * out.size(0) == out.numel() * source.size(0) && whole_rows(source) &&
              whole_rows(out),
          "put_rows: {} rows of {} do not fit into {}", ids.size(0), source, out);
  ctx.kernels->put_rows(ctx.kernel_context(), {source.detach(), ids, out});
  trace(ctx, "put_rows", Phase::Forward, 0, {&source, &source});
}

Tensor gather_columns(RankContext& ctx, const Tensor& x, const Tensor& indices) {
  check_matrix(ctx, "gather_columns", "x", x);
  check_indices(ctx, "gather_columns", "indices", indices, 2);
  require(indices.size(0) == x.size(0), "gather_columns: indices {} for the rows of {}", indices, x);
  check_range(ctx, "gather_columns", "index", indices, x.size(1), "a row");
  Tensor y = ctx.empty(indices.shape(), x.dtype());
  ctx.kernels->gather_columns(ctx.kernel_context(), {x.detach(), indices, y});
  trace(ctx, "gather_columns", Phase::Forward, 0, {&indices, &y, &y});
  if (needs_grad(ctx, {&x}))
    record(ctx, std::make_unique<GatherColumnsNode>("gather_columns", x, indices), y);
  return y;
}

TopK top_k(RankContext& ctx, const Tensor& x, int64_t k) {
  check_matrix(ctx, "top_k", "x", x);
  require(k >= 0 && k <= x.size(1), "top_k: {} of the {} values in a row of {}", k, x.size(1), x);
  TopK result{ctx.empty({x.size(0), k}, x.dtype()), ctx.empty({x.size(0), k}, DType::I64)};
  ctx.kernels->top_k(ctx.kernel_context(), {x.detach(), result.values, result.indices});
  trace(ctx, "top_k", Phase::Forward, static_cast<double>(x.numel()), {&x, &result.values, &result.indices});
  if (needs_grad(ctx, {&x}))
    record(ctx, std::make_unique<GatherColumnsNode>("top_k", x, result.indices), result.values);
  return result;
}

}  // namespace megatron::ops
