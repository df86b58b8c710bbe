#include "megatron/parallel/context/attention.h"
#include "megatron/parallel/context/chunk_utils.h"

namespace megatron {
namespace {

using namespace context;

enum class Direction { to_heads, to_tokens };

Tensor all_to_all(RankContext& ctx, Direction direction, const Tensor& x, const ProcessGroup& group,
                  const RowOrder& order) {
  int64_t ranks = group.size(), channels = x.size(2);
  if (direction == Direction::to_heads) {
    int64_t tokens = x.size(0), heads = x.size(1) / ranks;
    // By head group, so that what goes to one rank lies together.
    Tensor out = ctx.empty({ranks, tokens, heads, channels}, x.dtype()), in = ctx.empty_like(out);
    Tensor parts = ops::detach_contiguous(ctx, x).view({tokens, ranks, heads, channels}).transpose(0, 1);
    ctx.kernels->copy(ctx.kernel_context(), {parts, out});
    group.all_to_all(out, in).wait();
    return reordered(ctx, in.view({ranks * tokens, heads, channels}), order.forward);
  }
  int64_t tokens = x.size(0) / ranks, heads = x.size(1);
  Tensor out = reordered(ctx, x, order.inverse);
  Tensor in = ctx.empty({ranks, tokens, heads, channels}, x.dtype());
  group.all_to_all(out, in).wait();
  Tensor result = ctx.empty({tokens, ranks * heads, channels}, x.dtype());
  ctx.kernels->copy(ctx.kernel_context(),
                    {in.transpose(0, 1), result.view({tokens, ranks, heads, channels})});
  return result;
}

class UlyssesNode final : public Node {
 public:
  UlyssesNode(Direction direction, const ProcessGroup& group, const RowOrder& order, GradSlot slot)
      : direction_(direction), group_(group), order_(order), slot_(slot) {}
  const char* name() const override {
    return direction_ == Direction::to_heads ? "tokens_for_heads" : "heads_for_tokens";
  }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Direction back = direction_ == Direction::to_heads ? Direction::to_tokens : Direction::to_heads;
    tape.add_grad(ctx, slot_, all_to_all(ctx, back, tape.take_grad(output()), group_, order_));
  }

 private:
  Direction direction_;
  ProcessGroup group_;
  RowOrder order_;
  GradSlot slot_;
};

Tensor ulysses(RankContext& ctx, Direction direction, const Tensor& x, const ProcessGroup& group,
               const RowOrder& order) {
  Tensor y = all_to_all(ctx, direction, x.detach(), group, order);
  if (ops::needs_grad(ctx, {&x}))
    record(ctx, std::make_unique<UlyssesNode>(direction, group, order, x.grad_slot()), y);
  return y;
}

}  // namespace

Tensor tokens_for_heads(RankContext& ctx, const Tensor& x, const ProcessGroup& group, const RowOrder& order) {
  require(x.rank() == 3 && x.size(1) % group.size() == 0,
          "context parallelism: the {} heads of {} cannot be split over {} ranks; use cp_comm_type p2p or "
          "all_gather",
          x.rank() == 3 ? x.size(1) : 0, x, group.size());
  return ulysses(ctx, Direction::to_heads, x, group, order);
}

Tensor heads_for_tokens(RankContext& ctx, const Tensor& x, const ProcessGroup& group, const RowOrder& order) {
  return ulysses(ctx, Direction::to_tokens, x, group, order);
}

}  // namespace megatron
