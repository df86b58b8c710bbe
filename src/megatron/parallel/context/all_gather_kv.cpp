#include "megatron/parallel/context/attention.h"
#include "megatron/parallel/context/chunk_utils.h"

namespace megatron {
namespace {

using namespace context;

// Attention of the two local chunks of queries with the keys of whole sequences.
class Gathered {
 public:
  Gathered(const ops::AttentionOptions& options, const ContextSlices& slices, const ProcessGroup& group)
      : options_(options), slices_(slices), group_(group) {}

  const ContextSlices& slices() const { return slices_; }
  const ProcessGroup& group() const { return group_; }
  GradAccumulator* sinks() const { return options_.sinks.accumulator; }
  Tensor sinks_gradient(RankContext& ctx, int64_t heads) const {
    return ops::sinks_gradient(ctx, options_.sinks, options_.sinks_begin, heads);
  }

  // The keys (or values) of all ranks as whole sequences.
  Tensor gather(RankContext& ctx, const Tensor& x) const {
    Tensor own = ops::detach_contiguous(ctx, x);
    Tensor all = ctx.empty({x.size(0) * group_.size(), x.size(1), x.size(2)}, x.dtype());
    group_.all_gather(own, all).wait();
    return reordered(ctx, all, slices_.whole.forward);
  }
  // The sum over ranks of the gradients of whole sequences, for the tokens of this rank.
  Tensor scatter(RankContext& ctx, const Tensor& sum) const {
    Tensor by_rank = reordered(ctx, sum, slices_.whole.inverse);
    Tensor own = ctx.empty({sum.size(0) / group_.size(), sum.size(1), sum.size(2)}, sum.dtype());
    group_.reduce_scatter(by_rank, own).wait();
    return own;
  }

  ops::AttentionOptions options(int which) const {
    int ranks = group_.size();
    ops::AttentionOptions piece =
        piece_options(options_, slices_.slice, ranks, chunk_of(group_.rank(), ranks, which));
    piece.cu_keys = slices_.cu_whole;
    piece.max_keys = slices_.max_whole;
    return piece;
  }

 private:
  ops::AttentionOptions options_;
  ContextSlices slices_;
  ProcessGroup group_;
};

class GatheredAttentionNode final : public Node {
 public:
  GatheredAttentionNode(const Gathered& gathered, SavedAttention saved)
      : gathered_(gathered), saved_(std::move(saved)) {
    if (gathered_.sinks()) gathered_.sinks()->expect_use();
  }
  const char* name() const override { return "all_gather_kv_attention"; }

  // Keys and values are gathered again: kept, they would take as much memory as without the split.
  void backward_data(RankContext& ctx, Tape& tape) override {
    const RowOrder& order = gathered_.slices().slice.chunk_major;
    Tensor grad_o = reordered(ctx, tape.take_grad(output()), order.forward);
    Tensor q = saved_.q.get(ctx), o = saved_.o.get(ctx);
    Tensor k = gathered_.gather(ctx, saved_.k.get(ctx)), v = gathered_.gather(ctx, saved_.v.get(ctx));
    saved_.reset();
    DType dtype = q.dtype(), wide = accumulation_dtype(dtype);
    Tensor dq = ctx.empty_like(q), dk = ctx.zeros(k.shape(), wide), dv = ctx.zeros(v.shape(), wide);
    Tensor dsinks = gathered_.sinks_gradient(ctx, q.size(1));
    for (int which = 0; which < 2; ++which) {
      ops::AttentionGrads part =
          ops::attention_backward(ctx, half(q, which), k, v, {half(o, which), half(saved_.lse, which, 1)},
                                  half(grad_o, which), gathered_.options(which), dsinks);
      ctx.kernels->copy(ctx.kernel_context(), {part.dq, half(dq, which)});
      add_to(ctx, dk, part.dk);
      add_to(ctx, dv, part.dv);
    }
    tape.add_grad(ctx, saved_.q_slot, reordered(ctx, dq, order.inverse));
    tape.add_grad(ctx, saved_.k_slot, in_dtype(ctx, gathered_.scatter(ctx, dk), dtype));
    tape.add_grad(ctx, saved_.v_slot, in_dtype(ctx, gathered_.scatter(ctx, dv), dtype));
    if (gathered_.sinks()) gathered_.sinks()->contribute(ctx);
    saved_.lse = {};
  }

 private:
  Gathered gathered_;
  SavedAttention saved_;
};

}  // namespace

Tensor all_gather_kv_attention(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const ops::AttentionOptions& options, const ContextSlices& slices,
                               const ProcessGroup& group) {
  Gathered gathered(options, slices, group);
  const RowOrder& order = slices.slice.chunk_major;
  Tensor queries = reordered(ctx, q.detach(), order.forward);
  Tensor keys = gathered.gather(ctx, k.detach()), values = gathered.gather(ctx, v.detach());
  Tensor o = ctx.empty({q.size(0), q.size(1), v.size(2)}, q.dtype());
  Tensor lse = ctx.empty({q.size(1), q.size(0)}, accumulation_dtype(q.dtype()));
  for (int which = 0; which < 2; ++which) {
    ops::AttentionOptions piece = gathered.options(which);
    piece.sinks.accumulator = nullptr;  // this node reports their gradient
    ops::AttentionResult part = ops::attention(ctx, half(queries, which), keys, values, piece);
    ctx.kernels->copy(ctx.kernel_context(), {part.o, half(o, which)});
    ctx.kernels->copy(ctx.kernel_context(), {part.lse, half(lse, which, 1)});
  }
  Tensor result = reordered(ctx, o, order.inverse);
  if (ops::needs_grad(ctx, {&q, &k, &v}, {&options.sinks}))
    record(ctx,
           std::make_unique<GatheredAttentionNode>(
               gathered, SavedAttention(ctx, {queries, k.detach(), v.detach()}, o, lse, {q, k, v})),
           result);
  return result;
}

}  // namespace megatron
