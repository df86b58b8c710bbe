#include "megatron/parallel/tensor/linear_route.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace megatron {
namespace {

// A rank and its neighbours in a ring of ranks.
struct Ring {
  explicit Ring(const ProcessGroup& group)
      : group(group), size(group.size()), rank(group.rank()), next((rank + 1) % size), before(back(1)) {}
  int back(int steps) const { return (rank - steps + 2 * size) % size; }
  Work pass(const Tensor& out, const Tensor& in) const { return exchange(out, next, in, before); }
  Work exchange(const Tensor& out, int to, const Tensor& in, int from) const {
    using enum Message::Direction;
    return group.batch_send_recv({{Send, out, to}, {Recv, in, from}});
  }

  const ProcessGroup& group;
  int size, rank, next, before;
};

Tensor block_of(const Tensor& whole, int index, int count) {
  int64_t rows = whole.size(0) / count;
  return whole.slice(0, index * rows, (index + 1) * rows);
}

Tensor gathered(RankContext& ctx, const Tensor& own, const ProcessGroup& group, Work& work) {
  Tensor whole = ctx.empty({own.size(0) * group.size(), own.size(1)}, own.dtype());
  work = group.all_gather(own, whole);
  return whole;
}

// All ranks' blocks of rows in turn; f(begin, rows) runs for each while the next one is on its way. `width`
// blocks go together: neighbours exchange theirs first, and then every rank passes on as many.
template <class F>
Tensor gather_while(RankContext& ctx, const Tensor& own, const ProcessGroup& group, bool aggregate, F&& f) {
  Ring ring(group);
  const int width = aggregate && ring.size % 2 == 0 ? 2 : 1, turns = ring.size / width;
  const int64_t rows = own.size(0) * width;
  Tensor whole = ctx.empty({own.size(0) * ring.size, own.size(1)}, own.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {own, block_of(whole, ring.rank, ring.size)});
  if (width == 2) {
    const int other = ring.rank ^ 1;
    ring.exchange(block_of(whole, ring.rank, ring.size), other, block_of(whole, other, ring.size), other)
        .wait();
  }
  const auto part = [&](int step) { return (ring.rank / width - step + 2 * turns) % turns; };
  for (int step = 0; step < turns; ++step) {
    const Tensor held = block_of(whole, part(step), turns);
    Work work;
    if (step + 1 < turns)
      work = ring.exchange(held, (ring.rank + width) % ring.size, block_of(whole, part(step + 1), turns),
                           ring.back(width));
    f(part(step) * rows, held);
    work.wait();
  }
  return whole;
}

// What the rows of each of `splits` parts of a block are a multiple of: 16, which fp8 needs, where every part
// gets as many.
int64_t rows_unit(int64_t rows, int splits) { return rows % 16 == 0 && rows >= 16 * splits ? 16 : 1; }

// The sum over ranks of what f(begin, out) writes of all rows, for this rank's block; parts of every rank's
// block are computed while the sums of the parts before are on their way.
template <class F>
Tensor scatter_in_parts(RankContext& ctx, const Shape& block, DType dtype, const ProcessGroup& group,
                        int splits, F&& f) {
  Tensor sum = ctx.empty(block, dtype);
  std::vector<std::pair<Tensor, Work>> sent;
  const int64_t unit = rows_unit(block[0], splits), units = block[0] / unit;
  for (int64_t part = 0; part < splits; ++part) {
    const int64_t begin = units * part / splits * unit, end = units * (part + 1) / splits * unit;
    if (begin == end) continue;
    Tensor terms = ctx.empty({(end - begin) * group.size(), block[1]}, dtype);
    for (int rank = 0; rank < group.size(); ++rank)
      f(rank * block[0] + begin, block_of(terms, rank, group.size()));
    Work work = group.reduce_scatter(terms, sum.slice(0, begin, end));
    sent.emplace_back(std::move(terms), std::move(work));
  }
  for (auto& [terms, work] : sent) work.wait();
  return sum;
}

// The sum over ranks of what f(begin, out) writes of all rows, for this rank's block; each is computed while
// the sum of the ranks before is on its way.
template <class F>
Tensor scatter_while(RankContext& ctx, const Shape& block, DType dtype, const TensorParallel& tp, F&& f) {
  if (tp.overlap.splits > 0) return scatter_in_parts(ctx, block, dtype, tp.group, tp.overlap.splits, f);
  Ring ring(tp.group);
  Tensor sum, arriving;
  Work work;
  for (int step = 0; step < ring.size; ++step) {
    Tensor part = ctx.empty(block, dtype);
    f(ring.back(step + 1) * block[0], part);
    if (step > 0) {
      work.wait();
      ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, arriving, part, part});
    }
    sum = part;
    if (step + 1 == ring.size) break;
    arriving = ctx.empty(block, dtype);
    work = ring.pass(sum, arriving);
  }
  return sum;
}

// Work that holds what it reads.
ops::Pending pending_work(Work work, const Tensor& read) {
  return {[held = std::make_shared<Work>(std::move(work)), read] { held->wait(); }};
}

class ColumnRoute final : public ops::LinearRoute {
 public:
  explicit ColumnRoute(const TensorParallel& tp) : tp_(tp) {}
  const char* name() const override { return "column_parallel_linear"; }
  bool gathers_input() const override { return tp_.splits_tokens(); }
  bool gathers_gradient() const override { return false; }
  bool sums_input_gradient() const override { return true; }
  int64_t block_rows(int64_t rows) const override {
    return tp_.overlap.scatter_data && tp_.overlap.splits > 0 ? rows_unit(rows, tp_.overlap.splits) : rows;
  }

  Tensor forward(RankContext& ctx, const Tensor& x, int64_t columns, const RowGemm& gemm) const override {
    const int ranks = tp_.splits_tokens() ? tp_.size() : 1;
    Tensor y = ctx.empty({x.size(0) * ranks, columns}, x.dtype());
    if (ranks == 1) {
      gemm(x, 0, y);
    } else if (tp_.overlap.gather) {
      gather_while(ctx, x, tp_.group, tp_.overlap.aggregate, [&](int64_t begin, const Tensor& rows) {
        gemm(rows, begin, y.slice(0, begin, begin + rows.size(0)));
      });
    } else {
      Work work;
      Tensor whole = gathered(ctx, x, tp_.group, work);
      work.wait();
      gemm(whole, 0, y);
    }
    return y;
  }

  Tensor dgrad(RankContext& ctx, const Tensor& dy, int64_t columns, const RowGemm& gemm, Tensor&,
               ops::Pending& pending) const override {
    if (!gemm) return {};
    const int64_t tokens = dy.size(0), share = tokens / tp_.size();
    if (tp_.splits_tokens() && tp_.overlap.scatter_data)
      return scatter_while(ctx, {share, columns}, dy.dtype(), tp_, [&](int64_t begin, const Tensor& dx) {
        gemm(dy.slice(0, begin, begin + dx.size(0)), begin, dx);
      });
    Tensor whole = ctx.empty({tokens, columns}, dy.dtype()), dx = whole;
    gemm(dy, 0, whole);
    if (tp_.splits_tokens()) dx = ctx.empty({share, columns}, dy.dtype());
    Work work = tp_.splits_tokens() ? tp_.group.reduce_scatter(whole, dx) : tp_.group.all_reduce(whole);
    pending = pending_work(std::move(work), whole);
    if (!tp_.overlap.reduce_under_weight) pending.wait();
    return dx;
  }

  Tensor all_rows(RankContext& ctx, const Tensor& x, ops::Pending& pending) const override {
    Work work;
    Tensor whole = gathered(ctx, x, tp_.group, work);
    pending = pending_work(std::move(work), x);
    if (!tp_.overlap.gather_under_data) pending.wait();
    return whole;
  }

 private:
  TensorParallel tp_;
};

class RowRoute final : public ops::LinearRoute {
 public:
  explicit RowRoute(const TensorParallel& tp) : tp_(tp) {}
  const char* name() const override { return "row_parallel_linear"; }
  bool gathers_input() const override { return false; }
  bool gathers_gradient() const override { return true; }
  bool sums_input_gradient() const override { return false; }
  int64_t block_rows(int64_t rows) const override {
    const int64_t block = rows / tp_.size();
    return tp_.overlap.scatter && tp_.overlap.splits > 0 ? rows_unit(block, tp_.overlap.splits) : block;
  }

  Tensor forward(RankContext& ctx, const Tensor& x, int64_t columns, const RowGemm& gemm) const override {
    const int ranks = tp_.size();
    require(tp_.splits_tokens() && x.size(0) % ranks == 0,
            "row_parallel_linear: {} tokens cannot be split over {} ranks; choose a sequence length that "
            "divides, and sequence parallelism",
            x.size(0), ranks);
    const Shape block = {x.size(0) / ranks, columns};
    if (tp_.overlap.scatter)
      return scatter_while(ctx, block, x.dtype(), tp_, [&](int64_t begin, const Tensor& part) {
        gemm(x.slice(0, begin, begin + part.size(0)), begin, part);
      });
    Tensor whole = ctx.empty({x.size(0), columns}, x.dtype());
    gemm(x, 0, whole);
    Tensor y = ctx.empty(block, x.dtype());
    tp_.group.reduce_scatter(whole, y).wait();
    return y;
  }

  Tensor dgrad(RankContext& ctx, const Tensor& dy, int64_t columns, const RowGemm& gemm, Tensor& all,
               ops::Pending&) const override {
    const int ranks = tp_.size();
    Tensor dx;
    if (gemm) dx = ctx.empty({dy.size(0) * ranks, columns}, dy.dtype());
    if (tp_.overlap.gather) {
      all = gather_while(ctx, dy, tp_.group, tp_.overlap.aggregate, [&](int64_t begin, const Tensor& rows) {
        if (gemm) gemm(rows, begin, dx.slice(0, begin, begin + rows.size(0)));
      });
      return dx;
    }
    Work work;
    all = gathered(ctx, dy, tp_.group, work);
    work.wait();
    if (gemm) gemm(all, 0, dx);
    return dx;
  }

  Tensor all_rows(RankContext&, const Tensor& x, ops::Pending&) const override { return x; }

 private:
  TensorParallel tp_;
};

}  // namespace

std::shared_ptr<const ops::LinearRoute> column_route(const TensorParallel& tp) {
  return std::make_shared<ColumnRoute>(tp);
}

std::shared_ptr<const ops::LinearRoute> row_route(const TensorParallel& tp) {
  return std::make_shared<RowRoute>(tp);
}

}  // namespace megatron
