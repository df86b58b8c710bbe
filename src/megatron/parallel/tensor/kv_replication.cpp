#include "megatron/parallel/tensor/kv_replication.h"

#include "megatron/ops/check.h"

namespace megatron {
namespace {

// Copies this rank's queries, and the key and value, between the group's fused projection and its own.
void copy_own(RankContext& ctx, const Tensor& whole, const Tensor& own, const ProcessGroup& group,
              int64_t queries, int64_t sections, bool back) {
  int64_t all = whole.size(1), mine = own.size(1), shared = mine - sections * queries;
  auto copy = [&](const Tensor& a, const Tensor& b) {
    ctx.kernels->copy(ctx.kernel_context(), {back ? b : a, back ? a : b});
  };
  for (int64_t i = 0; i < sections; ++i) {
    const int64_t begin = (i * group.size() + group.rank()) * queries;
    copy(whole.slice(1, begin, begin + queries), own.slice(1, i * queries, (i + 1) * queries));
  }
  copy(whole.slice(1, all - shared, all), own.slice(1, sections * queries, mine));
}

class ShareKeysNode final : public Node {
 public:
  ShareKeysNode(const ProcessGroup& group, int64_t queries, int64_t sections, int64_t columns, GradSlot slot)
      : group_(group), queries_(queries), sections_(sections), columns_(columns), slot_(slot) {}
  const char* name() const override { return "share_keys"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor grad = tape.take_grad(output());
    int64_t tokens = grad.size(0), ranks = group_.size();
    Tensor whole = ctx.zeros({tokens, ranks * columns_}, grad.dtype());
    copy_own(ctx, whole, grad, group_, queries_, sections_, true);
    Tensor parts = ctx.empty({ranks, tokens, columns_}, grad.dtype());
    ctx.kernels->copy(ctx.kernel_context(), {whole.view({tokens, ranks, columns_}).transpose(0, 1), parts});
    Tensor sum = ctx.empty({tokens, columns_}, grad.dtype());
    group_.reduce_scatter(parts, sum).wait();
    tape.add_grad(ctx, slot_, std::move(sum));
  }

 private:
  ProcessGroup group_;
  int64_t queries_, sections_, columns_;
  GradSlot slot_;
};

}  // namespace

Tensor share_keys(RankContext& ctx, const Tensor& part, const ProcessGroup& group, int64_t heads,
                  int64_t channels, int64_t sections) {
  ops::check_input(ctx, "share_keys", "part", part);
  int64_t ranks = group.size();
  require(part.rank() == 2 && part.size(1) * ranks == (sections * heads * ranks + 2) * channels,
          "share_keys: {} is not a part of {} of {} query heads, a key and a value of {} channels", part,
          ranks, sections * heads * ranks, channels);
  int64_t tokens = part.size(0), columns = part.size(1);
  Tensor parts = ctx.empty({ranks, tokens, columns}, part.dtype());
  group.all_gather(ops::detach_contiguous(ctx, part), parts).wait();
  Tensor whole = ctx.empty({tokens, ranks * columns}, part.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {parts.transpose(0, 1), whole.view({tokens, ranks, columns})});
  Tensor own = ctx.empty({tokens, (sections * heads + 2) * channels}, part.dtype());
  copy_own(ctx, whole, own, group, heads * channels, sections, false);
  if (ops::needs_grad(ctx, {&part}))
    record(ctx, std::make_unique<ShareKeysNode>(group, heads * channels, sections, columns, part.grad_slot()),
           own);
  return own;
}

}  // namespace megatron
