#include "megatron/ops/weight_rows.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

// Its own accumulator gathers what the ops that read the rows contribute; they come before it in the walk. It
// has no outputs: what flows back reaches it through that accumulator.
class WeightRowsNode final : public Node {
 public:
  WeightRowsNode(const Weight& whole, const std::vector<RowRange>& ranges, const Shape& shape)
      : whole_(whole.accumulator), ranges_(ranges) {
    whole_->expect_use();
    rows_.before_write = [this, shape, dtype = accumulation_dtype(whole.value.dtype())](RankContext& ctx) {
      if (!rows_.main_grad) rows_.main_grad = ctx.empty(shape, dtype);
    };
  }
  const char* name() const override { return "weight_rows"; }
  GradAccumulator* rows() { return &rows_; }

  void backward_data(RankContext& ctx, Tape&) override {
    const Tensor& target = whole_->target(ctx);
    if (!whole_->has_value()) ctx.kernels->fill(ctx.kernel_context(), {target, 0});
    int64_t done = 0;
    for (const RowRange& range : ranges_) {
      const Tensor part = target.slice(0, range.begin, range.end);
      const int64_t count = range.end - range.begin;
      if (rows_.has_value())
        ctx.kernels->axpby(ctx.kernel_context(),
                           {.a = part, .b = rows_.main_grad.slice(0, done, done + count), .out = part});
      done += count;
    }
    trace(ctx, "weight_rows", Phase::BackwardData, 0, {&target, &rows_.main_grad});
    whole_->contribute(ctx);
  }

 private:
  GradAccumulator* whole_;
  GradAccumulator rows_;
  std::vector<RowRange> ranges_;
};

}  // namespace

Weight weight_rows(RankContext& ctx, const Weight& weight, const std::vector<RowRange>& ranges) {
  check_input(ctx, "weight_rows", "weight", weight.value);
  Shape shape = weight.value.shape();
  shape[0] = 0;
  for (const RowRange& range : ranges) {
    require(0 <= range.begin && range.begin <= range.end && range.end <= weight.value.size(0),
            "weight_rows: [{}, {}) is not among the rows of {}", range.begin, range.end, weight.value);
    shape[0] += range.end - range.begin;
  }
  Weight rows{ctx.empty(shape, weight.value.dtype())};
  int64_t done = 0;
  for (const RowRange& range : ranges) {
    const int64_t count = range.end - range.begin;
    ctx.kernels->copy(ctx.kernel_context(), {weight.value.slice(0, range.begin, range.end),
                                             rows.value.slice(0, done, done + count)});
    done += count;
  }
  trace(ctx, "weight_rows", Phase::Forward, 0, {&rows.value, &rows.value});
  if (needs_grad(ctx, {}, {&weight})) {
    auto node = std::make_unique<WeightRowsNode>(weight, ranges, shape);
    rows.accumulator = node->rows();
    ctx.tape->record(std::move(node), {});
  }
  return rows;
}

}  // namespace megatron::ops
