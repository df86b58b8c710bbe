#include <limits>

#include "megatron/parallel/context/attention.h"
#include "megatron/parallel/context/chunk_utils.h"

namespace megatron {
namespace {

using namespace context;

// Keys and values of one rank, or their gradients, on their way around the ring.
struct Block {
  Tensor k, v;
  explicit operator bool() const { return k.defined(); }
};

// One rank's part of a ring: what all passes over it have in common.
class Ring {
 public:
  Ring(const ops::AttentionOptions& options, const ZigzagSlice& slice, const ProcessGroup& group)
      : options_(options), slice_(slice), group_(group) {}

  int size() const { return group_.size(); }
  // Whose block this rank holds at a step.
  int owner(int step) const { return (group_.rank() - step + size()) % size(); }
  const ZigzagSlice& slice() const { return slice_; }
  GradAccumulator* sinks() const { return options_.sinks.accumulator; }
  Tensor sinks_gradient(RankContext& ctx, int64_t heads) const {
    return ops::sinks_gradient(ctx, options_.sinks, options_.sinks_begin, heads);
  }

  Block empty_like(RankContext& ctx, const Block& block) const {
    return {ctx.empty_like(block.k), ctx.empty_like(block.v)};
  }
  // Sends a block to the next rank and receives another from the one before.
  Work pass(const Block& out, const Block& in) const {
    int next = (group_.rank() + 1) % size(), before = (group_.rank() + size() - 1) % size();
    using enum Message::Direction;
    return group_.batch_send_recv(
        {{Send, out.k, next}, {Send, out.v, next}, {Recv, in.k, before}, {Recv, in.v, before}});
  }

  // Calls f(query half, key half, options) for every pair of chunks of which some query may see some key.
  template <class F>
  void for_each_pair(int step, F&& f) const {
    for (int which_q = 0; which_q < 2; ++which_q)
      for (int which_k = 0; which_k < 2; ++which_k) {
        int64_t query = chunk_of(group_.rank(), size(), which_q),
                key = chunk_of(owner(step), size(), which_k);
        if (!sees(query, key)) continue;
        ops::AttentionOptions options = piece_options(options_, slice_, size(), query);
        options.offsets.key_chunk = key;
        if (query > key && options.window_left < 0) options.causal = false;  // nothing is masked
        if (query != key) options.sinks = {};                                // they take part once
        f(which_q, which_k, options);
      }
  }

 private:
  bool sees(int64_t query, int64_t key) const {
    if (options_.causal && key > query) return false;
    if (slice_.cu_chunks) return true;  // chunks differ in length: the kernel finds out
    int64_t between = (std::abs(query - key) - 1) * slice_.max_chunk + 1;  // the least distance
    int64_t window = key < query ? options_.window_left : options_.window_right;
    return query == key || window < 0 || between <= window;
  }

  ops::AttentionOptions options_;
  ZigzagSlice slice_;
  ProcessGroup group_;
};

class RingAttentionNode final : public Node {
 public:
  RingAttentionNode(const Ring& ring, SavedAttention saved) : ring_(ring), saved_(std::move(saved)) {
    if (ring_.sinks()) ring_.sinks()->expect_use();
  }
  const char* name() const override { return "ring_attention"; }

  // The ring once more, in which the gradients of a block travel one step behind it and end where it belongs.
  void backward_data(RankContext& ctx, Tape& tape) override {
    const RowOrder& order = ring_.slice().chunk_major;
    Tensor grad_o = reordered(ctx, tape.take_grad(output()), order.forward);
    Tensor q = saved_.q.get(ctx), o = saved_.o.get(ctx);
    Block held{saved_.k.get(ctx), saved_.v.get(ctx)};
    saved_.reset();
    DType dtype = q.dtype(), wide = accumulation_dtype(dtype);
    Tensor dq = ctx.zeros(q.shape(), wide);
    Tensor dsinks = ring_.sinks_gradient(ctx, q.size(1));
    Block sent, arriving;
    Work gradients;
    for (int step = 0; step < ring_.size(); ++step) {
      Block coming;
      Work keys;
      if (step + 1 < ring_.size()) {
        coming = ring_.empty_like(ctx, held);
        keys = ring_.pass(held, coming);
      }
      Block sums{ctx.zeros(held.k.shape(), wide), ctx.zeros(held.v.shape(), wide)};
      ring_.for_each_pair(step, [&](int queries, int keys, const ops::AttentionOptions& options) {
        ops::AttentionGrads part =
            ops::attention_backward(ctx, half(q, queries), half(held.k, keys), half(held.v, keys),
                                    {half(o, queries), half(saved_.lse, queries, 1)}, half(grad_o, queries),
                                    options, options.sinks.defined() ? dsinks : Tensor{});
        add_to(ctx, half(dq, queries), part.dq);
        add_to(ctx, half(sums.k, keys), part.dk);
        add_to(ctx, half(sums.v, keys), part.dv);
      });
      if (step > 0) {
        gradients.wait();
        add_to(ctx, sums.k, arriving.k);
        add_to(ctx, sums.v, arriving.v);
      }
      sent = sums;
      arriving = ring_.size() > 1 ? ring_.empty_like(ctx, sums) : sums;
      if (ring_.size() > 1) gradients = ring_.pass(sent, arriving);
      keys.wait();
      if (coming) held = coming;
    }
    gradients.wait();
    auto finish = [&](GradSlot slot, const Tensor& sum) {
      tape.add_grad(ctx, slot, reordered(ctx, in_dtype(ctx, sum, dtype), order.inverse));
    };
    finish(saved_.q_slot, dq);
    finish(saved_.k_slot, arriving.k);
    finish(saved_.v_slot, arriving.v);
    if (ring_.sinks()) ring_.sinks()->contribute(ctx);
    saved_.lse = {};
  }

 private:
  Ring ring_;
  SavedAttention saved_;
};

}  // namespace

Tensor ring_attention(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                      const ops::AttentionOptions& options, const ZigzagSlice& slice,
                      const ProcessGroup& group) {
  Ring ring(options, slice, group);
  const Tensor& order = slice.chunk_major.forward;
  Tensor queries = reordered(ctx, q.detach(), order);
  Block own{reordered(ctx, k.detach(), order), reordered(ctx, v.detach(), order)}, held = own;
  DType wide = accumulation_dtype(q.dtype());
  Tensor o = ctx.zeros({q.size(0), q.size(1), v.size(2)}, wide);
  Tensor lse = ctx.full({q.size(1), q.size(0)}, wide, -std::numeric_limits<double>::infinity());
  for (int step = 0; step < ring.size(); ++step) {
    Block coming;
    Work keys;
    if (step + 1 < ring.size()) {
      coming = ring.empty_like(ctx, held);
      keys = ring.pass(held, coming);
    }
    ring.for_each_pair(step, [&](int queries_half, int keys_half, ops::AttentionOptions pair) {
      pair.sinks.accumulator = nullptr;  // this node reports their gradient
      ops::AttentionResult part = ops::attention(ctx, half(queries, queries_half), half(held.k, keys_half),
                                                 half(held.v, keys_half), pair);
      ctx.kernels->attention_merge(ctx.kernel_context(),
                                   {half(o, queries_half), half(lse, queries_half, 1), part.o, part.lse});
    });
    keys.wait();
    if (coming) held = coming;
  }
  o = in_dtype(ctx, o, q.dtype());
  Tensor result = reordered(ctx, o, slice.chunk_major.inverse);
  if (ops::needs_grad(ctx, {&q, &k, &v}, {&options.sinks}))
    record(ctx,
           std::make_unique<RingAttentionNode>(
               ring, SavedAttention(ctx, {queries, own.k, own.v}, o, lse, {q, k, v})),
           result);
  return result;
}

}  // namespace megatron
