#include "megatron/parallel/expert/row_collectives.h"

#include "megatron/base/sum.h"
#include "megatron/ops/check.h"

namespace megatron {
namespace {

using Backward = std::function<Tensor(RankContext&, Tape&, const Tensor& grad)>;

class RowsNode final : public Node {
 public:
  RowsNode(const char* name, GradSlot slot, Backward backward)
      : name_(name), slot_(slot), backward_(std::move(backward)) {}
  const char* name() const override { return name_; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    tape.add_grad(ctx, slot_, backward_(ctx, tape, tape.take_grad(output())));
    backward_ = nullptr;
  }

 private:
  const char* name_;
  GradSlot slot_;
  Backward backward_;
};

void record_rows(RankContext& ctx, const char* name, const Tensor& x, Tensor& y, Backward backward) {
  ops::trace(ctx, name, Phase::Forward, 0, {&x, &y});
  if (ctx.tracks(x)) record(ctx, std::make_unique<RowsNode>(name, x.grad_slot(), std::move(backward)), y);
}

Shape with_rows(const Tensor& x, int64_t rows) {
  Shape shape = x.shape();
  shape[0] = rows;
  return shape;
}

Tensor padded(RankContext& ctx, const Tensor& x, int64_t rows, double padding) {
  if (x.size(0) == rows) return ops::detach_contiguous(ctx, x);
  Tensor y = ctx.empty(with_rows(x, rows), x.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {x, y.slice(0, 0, x.size(0))});
  ctx.kernels->fill(ctx.kernel_context(), {y.slice(0, x.size(0), rows), padding});
  return y;
}

Tensor gathered(RankContext& ctx, const Tensor& x, int64_t share, const ProcessGroup& group, double padding) {
  Tensor part = padded(ctx, x, share, padding);
  Tensor whole = ctx.empty(with_rows(x, share * group.size()), x.dtype());
  group.all_gather(part, whole).wait();
  return whole;
}

Tensor scattered(RankContext& ctx, const Tensor& x, int64_t rows, const ProcessGroup& group) {
  Tensor part = ctx.empty(with_rows(x, x.size(0) / group.size()), x.dtype());
  group.reduce_scatter(ops::detach_contiguous(ctx, x), part).wait();
  return part.slice(0, 0, rows);
}

Tensor exchanged(RankContext& ctx, const Tensor& x, const std::vector<int64_t>& send,
                 const std::vector<int64_t>& recv, const ProcessGroup& group,
                 const std::function<void()>& meanwhile, int64_t rows) {
  int64_t arrived = sum_of(recv);
  Tensor y = ctx.empty(with_rows(x, std::max(rows, arrived)), x.dtype());
  Work work = group.all_to_all(x.slice(0, 0, sum_of(send)), y.slice(0, 0, arrived), send, recv);
  if (meanwhile) meanwhile();
  work.wait();
  return y;
}

}  // namespace

Tensor all_to_all_rows(RankContext& ctx, const Tensor& x, const std::vector<int64_t>& send,
                       const std::vector<int64_t>& recv, const ProcessGroup& group,
                       const std::function<void()>& meanwhile, int64_t rows, bool fill_backward) {
  Tensor y = exchanged(ctx, ops::detach_contiguous(ctx, x), send, recv, group, meanwhile, rows);
  // Rows of x that were not sent get no gradient: nothing reads them.
  record_rows(ctx, "all_to_all_rows", x, y,
              [=, rows = x.size(0)](RankContext& ctx, Tape& tape, const Tensor& grad) {
                std::function<void()> fill;
                if (fill_backward) fill = [&] { tape.backward_weight(ctx); };
                return exchanged(ctx, grad, recv, send, group, fill, rows);
              });
  return y;
}

Tensor all_gather_rows(RankContext& ctx, const Tensor& x, int64_t share, const ProcessGroup& group,
                       double padding) {
  int64_t rows = x.size(0);
  Tensor y = gathered(ctx, x.detach(), share, group, padding);
  record_rows(ctx, "all_gather_rows", x, y,
              [=](RankContext& ctx, Tape&, const Tensor& grad) { return scattered(ctx, grad, rows, group); });
  return y;
}

Tensor reduce_scatter_rows(RankContext& ctx, const Tensor& x, int64_t rows, const ProcessGroup& group) {
  int64_t share = x.size(0) / group.size();
  Tensor y = scattered(ctx, x.detach(), rows, group);
  record_rows(ctx, "reduce_scatter_rows", x, y, [=](RankContext& ctx, Tape&, const Tensor& grad) {
    return gathered(ctx, grad, share, group, 0);
  });
  return y;
}

RowShare share_of_rows(int64_t tokens, const ProcessGroup& group) {
  int64_t share = (tokens + group.size() - 1) / group.size(), begin = std::min(tokens, share * group.rank());
  return {begin, std::min(tokens, begin + share) - begin, share};
}

Tensor take_rows(RankContext& ctx, const Tensor& x, const ProcessGroup& group) {
  int64_t tokens = x.size(0);
  RowShare own = share_of_rows(tokens, group);
  Tensor y = ops::detach_contiguous(ctx, x).slice(0, own.begin, own.begin + own.rows);
  record_rows(ctx, "take_rows", x, y, [=](RankContext& ctx, Tape&, const Tensor& grad) {
    return gathered(ctx, grad, own.share, group, 0).slice(0, 0, tokens);
  });
  return y;
}

Tensor join_rows(RankContext& ctx, const Tensor& x, int64_t tokens, const ProcessGroup& group) {
  RowShare own = share_of_rows(tokens, group);
  Tensor y = gathered(ctx, x.detach(), own.share, group, 0).slice(0, 0, tokens);
  record_rows(ctx, "join_rows", x, y, [=](RankContext&, Tape&, const Tensor& grad) {
    return grad.slice(0, own.begin, own.begin + own.rows);
  });
  return y;
}

}  // namespace megatron
