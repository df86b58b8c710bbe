#include "megatron/parallel/tensor/overlapped_linear.h"

#include "megatron/ops/check.h"
#include "megatron/ops/linear_format.h"

namespace megatron {
namespace {

// A rank and its neighbours in a ring of ranks.
struct Ring {
  explicit Ring(const ProcessGroup& group)
      : group(group),
        size(group.size()),
        rank(group.rank()),
        next((rank + 1) % size),
        before((rank + size - 1) % size) {}
  int back(int steps) const { return (rank - steps + 2 * size) % size; }
  Work pass(const Tensor& out, const Tensor& in) const {
    using enum Message::Direction;
    return group.batch_send_recv({{Send, out, next}, {Recv, in, before}});
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

// All ranks' blocks of rows in turn; f(rank, block) runs for each while the next one is on its way.
template <class F>
Tensor gather_while(RankContext& ctx, const Tensor& own, const ProcessGroup& group, F&& f) {
  Ring ring(group);
  Tensor whole = ctx.empty({own.size(0) * ring.size, own.size(1)}, own.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {own, block_of(whole, ring.rank, ring.size)});
  for (int step = 0; step < ring.size; ++step) {
    int owner = ring.back(step);
    Work work;
    if (step + 1 < ring.size)
      work = ring.pass(block_of(whole, owner, ring.size), block_of(whole, ring.back(step + 1), ring.size));
    f(owner, block_of(whole, owner, ring.size));
    work.wait();
  }
  return whole;
}

// The sum over ranks of what f(block's rank, out) writes, for this rank's block; each is computed while the
// sum of the ranks before is on its way.
template <class F>
Tensor scatter_while(RankContext& ctx, const Shape& block, DType dtype, const ProcessGroup& group, F&& f) {
  Ring ring(group);
  Tensor sum, arriving;
  Work work;
  for (int step = 0; step < ring.size; ++step) {
    Tensor part = ctx.empty(block, dtype);
    f(ring.back(step + 1), part);
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

const ops::LinearFormat& format() { return ops::plain_format(); }

void weight_gradient(RankContext& ctx, const Tensor& dy, const Tensor& x, GradAccumulator& accumulator) {
  format().wgrad(ctx, {.data = dy}, {.data = x}, accumulator);
  accumulator.contribute(ctx);
}

class ColumnParallelNode final : public Node {
 public:
  ColumnParallelNode(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                     const TensorParallel& tp)
      : x_(weight.trainable() ? Saved(ctx, x) : Saved()),
        slot_(x.grad_slot()),
        weight_(weight),
        bias_(bias),
        tp_(tp) {
    if (weight_.accumulator) weight_.accumulator->expect_use();
    if (bias_.accumulator) bias_.accumulator->expect_use();
  }
  const char* name() const override { return "column_parallel_linear"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    dy_ = tape.take_grad(output());
    bool weight_now = weight_.accumulator && !ctx.defer_weight_grads;
    Work gathering, reducing;
    Tensor x;
    if (weight_now) x = input(ctx, gathering);
    if (!tp_.overlap.gather_under_data) gathering.wait();
    Tensor dx = slot_ ? data_gradient(ctx, reducing) : Tensor{};
    if (!tp_.overlap.reduce_under_weight) reducing.wait();
    if (bias_.accumulator) ops::add_row_sum(ctx, "linear_bias", dy_, *bias_.accumulator);
    if (weight_now) {
      gathering.wait();
      weight_gradient(ctx, dy_, x, *weight_.accumulator);
      x_.reset();
      waits_for_weight_ = false;
    }
    reducing.wait();
    whole_dx_ = {};
    tape.add_grad(ctx, slot_, std::move(dx));
    // What x would be made from again may be gone by the time W runs.
    if (weight_.accumulator && ctx.defer_weight_grads) x_ = Saved(ctx, x_.get(ctx));
    if (!weight_.accumulator || weight_now) dy_ = {};
  }

  bool has_weight_step() const override { return weight_.accumulator && waits_for_weight_; }
  void backward_weight(RankContext& ctx) override {
    Work gathering;
    Tensor x = input(ctx, gathering);
    gathering.wait();
    weight_gradient(ctx, dy_, x, *weight_.accumulator);
    x_.reset();
    dy_ = {};
  }

 private:
  Tensor input(RankContext& ctx, Work& work) {
    Tensor x = x_.get(ctx);
    return tp_.splits_tokens() ? gathered(ctx, x, tp_.group, work) : x;
  }

  Tensor data_gradient(RankContext& ctx, Work& work) {
    int64_t tokens = dy_.size(0), in = weight_.value.size(1);
    auto multiply = [&](const Tensor& dy, const Tensor& dx) {
      format().dgrad(ctx, {.data = dy}, weight_, dx);
    };
    int ranks = tp_.size();
    if (tp_.splits_tokens() && tp_.overlap.scatter_data)
      return scatter_while(ctx, {tokens / ranks, in}, dy_.dtype(), tp_.group,
                           [&](int rank, const Tensor& dx) { multiply(block_of(dy_, rank, ranks), dx); });
    whole_dx_ = ctx.empty({tokens, in}, dy_.dtype());
    multiply(dy_, whole_dx_);
    if (!tp_.splits_tokens()) {
      work = tp_.group.all_reduce(whole_dx_);
      return std::move(whole_dx_);
    }
    Tensor dx = ctx.empty({tokens / ranks, in}, dy_.dtype());
    work = tp_.group.reduce_scatter(whole_dx_, dx);
    return dx;
  }

  Saved x_;
  GradSlot slot_;
  Weight weight_, bias_;
  TensorParallel tp_;
  Tensor dy_, whole_dx_;  // the latter is read while its sum is under way
  bool waits_for_weight_ = true;
};

class RowParallelNode final : public Node {
 public:
  RowParallelNode(RankContext& ctx, const Tensor& x, const Weight& weight, const TensorParallel& tp)
      : x_(weight.trainable() ? Saved(ctx, x) : Saved()), slot_(x.grad_slot()), weight_(weight), tp_(tp) {
    if (weight_.accumulator) weight_.accumulator->expect_use();
  }
  const char* name() const override { return "row_parallel_linear"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor own = tape.take_grad(output()), dx;
    if (slot_) dx = ctx.empty({own.size(0) * tp_.size(), weight_.value.size(1)}, own.dtype());
    auto multiply = [&](const Tensor& dy, const Tensor& part) {
      if (slot_) format().dgrad(ctx, {.data = dy}, weight_, part);
    };
    if (tp_.overlap.gather) {
      dy_ = gather_while(ctx, own, tp_.group, [&](int rank, const Tensor& dy) {
        multiply(dy, slot_ ? block_of(dx, rank, tp_.size()) : Tensor{});
      });
    } else {
      Work work;
      dy_ = gathered(ctx, own, tp_.group, work);
      work.wait();
      multiply(dy_, dx);
    }
    tape.add_grad(ctx, slot_, std::move(dx));
    if (weight_.accumulator && ctx.defer_weight_grads) x_ = Saved(ctx, x_.get(ctx));
    if (!weight_.accumulator) dy_ = {};
  }

  bool has_weight_step() const override { return weight_.accumulator != nullptr; }
  void backward_weight(RankContext& ctx) override {
    weight_gradient(ctx, dy_, x_.get(ctx), *weight_.accumulator);
    x_.reset();
    dy_ = {};
  }

 private:
  Saved x_;
  GradSlot slot_;
  Weight weight_;
  TensorParallel tp_;
  Tensor dy_;
};

void check(const RankContext& ctx, const char* op, const Tensor& x, const Weight& weight) {
  ops::check_input(ctx, op, "x", x);
  ops::check_input(ctx, op, "weight", weight.value);
  ops::check_weight(ctx, op, weight, x.dtype());
  require(x.rank() == 2 && weight.value.rank() == 2 && x.size(1) == weight.value.size(1),
          "{}: x {} and weight {} do not fit; they must be [tokens, in] and [out, in]", op, x, weight.value);
}

}  // namespace

Tensor column_parallel_linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                              const TensorParallel& tp) {
  check(ctx, "column_parallel_linear", x, weight);
  int64_t out = weight.value.size(0);
  Tensor own = ops::detach_contiguous(ctx, x), y;
  if (!tp.splits_tokens()) {
    y = ctx.empty({x.size(0), out}, x.dtype());
    format().forward(ctx, {.data = own}, weight, bias.value, y);
  } else {
    y = ctx.empty({x.size(0) * tp.size(), out}, x.dtype());
    if (tp.overlap.gather) {
      gather_while(ctx, own, tp.group, [&](int rank, const Tensor& block) {
        format().forward(ctx, {.data = block}, weight, bias.value, block_of(y, rank, tp.size()));
      });
    } else {
      Work work;
      Tensor whole = gathered(ctx, own, tp.group, work);
      work.wait();
      format().forward(ctx, {.data = whole}, weight, bias.value, y);
    }
  }
  if (ops::needs_grad(ctx, {&x}, {&weight, &bias}))
    record(ctx,
           std::make_unique<ColumnParallelNode>(ctx, own.with_grad_slot(x.grad_slot()), weight, bias, tp), y);
  return y;
}

Tensor row_parallel_linear(RankContext& ctx, const Tensor& x, const Weight& weight,
                           const TensorParallel& tp) {
  check(ctx, "row_parallel_linear", x, weight);
  int ranks = tp.size();
  require(tp.splits_tokens() && x.size(0) % ranks == 0,
          "row_parallel_linear: {} tokens cannot be split over {} ranks; choose a sequence length that "
          "divides, and "
          "sequence parallelism",
          x.size(0), ranks);
  Tensor own = ops::detach_contiguous(ctx, x), y;
  Shape block = {x.size(0) / ranks, weight.value.size(0)};
  if (tp.overlap.scatter) {
    y = scatter_while(ctx, block, x.dtype(), tp.group, [&](int rank, const Tensor& part) {
      format().forward(ctx, {.data = block_of(own, rank, ranks)}, weight, {}, part);
    });
  } else {
    Tensor whole = ctx.empty({x.size(0), block[1]}, x.dtype());
    format().forward(ctx, {.data = own}, weight, {}, whole);
    y = ctx.empty(block, x.dtype());
    tp.group.reduce_scatter(whole, y).wait();
  }
  if (ops::needs_grad(ctx, {&x}, {&weight}))
    record(ctx, std::make_unique<RowParallelNode>(ctx, own.with_grad_slot(x.grad_slot()), weight, tp), y);
  return y;
}

}  // namespace megatron
