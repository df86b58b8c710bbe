#include "megatron/ops/channel_delta.h"

#include "megatron/ops/recurrent_state.h"

namespace megatron::ops {
namespace {

constexpr size_t kInputs = 5;

double rule_flops(const ChannelDeltaArgs& args) {
  return 8.0 * static_cast<double>(args.q.size(0) * args.value_heads) *
         static_cast<double>(args.key_channels * args.value_channels);
}

class ChannelDeltaNode final : public Node {
 public:
  ChannelDeltaNode(RankContext& ctx, const ChannelDeltaArgs& args, const Tensor* const (&inputs)[kInputs])
      : args_(args) {
    for (Tensor* kept : kept_by(args_)) {
      saved_.emplace_back(ctx, *kept);
      *kept = {};
    }
    for (const Tensor* input : inputs) slots_.push_back(input->grad_slot());
    args_.o = {};
  }
  const char* name() const override { return "channel_delta"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    size_t i = 0;
    for (Tensor* kept : kept_by(args_)) *kept = saved_[i++].get(ctx);
    Tensor d_o = tape.take_grad(output());
    if (!d_o) d_o = ctx.zeros(args_.v.shape(), args_.v.dtype());
    const auto like = [&](const Tensor& x) { return ctx.empty(x.shape(), x.dtype()); };
    ChannelDeltaBackwardArgs args{.forward = args_,
                                  .d_o = d_o,
                                  .dq = like(args_.q),
                                  .dk = like(args_.k),
                                  .de = like(args_.e),
                                  .dg = like(args_.g),
                                  .dv = like(args_.v)};
    ctx.kernels->channel_delta_backward(ctx.kernel_context(), args);
    trace(ctx, "channel_delta", Phase::BackwardData, 3 * rule_flops(args_),
          {&args_.q, &args_.k, &args_.e, &args_.g, &args_.v, &d_o, &args.dq, &args.dv, &args_.before});
    const Tensor* grads[kInputs] = {&args.dq, &args.dk, &args.de, &args.dg, &args.dv};
    for (i = 0; i < kInputs; ++i) tape.add_grad(ctx, slots_[i], *grads[i]);
    args_ = {};
    saved_.clear();
  }

 private:
  static std::array<Tensor*, kInputs> kept_by(ChannelDeltaArgs& args) {
    return {&args.q, &args.k, &args.e, &args.g, &args.v};
  }

  ChannelDeltaArgs args_;
  std::vector<Saved> saved_;  // in the order of kept_by()
  std::vector<GradSlot> slots_;
};

}  // namespace

Tensor channel_delta(RankContext& ctx, const ChannelDeltaInputs& inputs, const ChannelDeltaOptions& options,
                     const SequenceRows& rows, const Tensor& state) {
  const auto& [key_heads, value_heads, key_channels, value_channels, chunk] = options;
  const auto& [q, k, e, g, v] = inputs;
  require(key_heads > 0 && value_heads % key_heads == 0 && chunk > 0,
          "channel_delta: {} value heads cannot share {} key heads in chunks of {}", value_heads, key_heads,
          chunk);
  check_floating("channel_delta", "q", q);
  const int64_t tokens = q.size(0);
  const DType wide = accumulation_dtype(q.dtype());
  const Shape keys{tokens, key_heads * key_channels}, values{tokens, value_heads * value_channels};
  const auto check = [&](const char* what, const Tensor& x, const Shape& shape, DType dtype) {
    check_input(ctx, "channel_delta", what, x);
    check_shape("channel_delta", what, x, shape);
    check_dtype("channel_delta", what, x, dtype);
  };
  check("q", q, keys, q.dtype());
  check("k", k, keys, q.dtype());
  check("e", e, keys, q.dtype());
  check("g", g, keys, wide);
  check("v", v, values, q.dtype());
  check_rows("channel_delta", q, rows);
  ChannelDeltaArgs args{.rows = rows,
                        .key_heads = key_heads,
                        .value_heads = value_heads,
                        .key_channels = key_channels,
                        .value_channels = value_channels,
                        .chunk = chunk,
                        .q = detach_row_contiguous(ctx, q),
                        .k = detach_row_contiguous(ctx, k),
                        .e = detach_row_contiguous(ctx, e),
                        .g = detach_row_contiguous(ctx, g),
                        .v = detach_row_contiguous(ctx, v),
                        .o = ctx.empty(values, q.dtype()),
                        .before = {},
                        .state = state};
  const Tensor* all[kInputs] = {&q, &k, &e, &g, &v};
  const bool recorded = needs_grad(ctx, {&q, &k, &e, &g, &v});
  check_recurrent_state(ctx, "channel_delta", state, {rows.count, value_heads, key_channels, value_channels},
                        wide, recorded);
  if (recorded)
    args.before =
        ctx.empty({chunk_slots(tokens, rows.count, chunk), value_heads, key_channels, value_channels}, wide);
  ctx.kernels->channel_delta(ctx.kernel_context(), args);
  trace(ctx, "channel_delta", Phase::Forward, rule_flops(args), {&q, &k, &e, &g, &v, &args.o, &args.before});
  Tensor o = args.o;
  if (recorded) record(ctx, std::make_unique<ChannelDeltaNode>(ctx, args, all), o);
  return o;
}

}  // namespace megatron::ops
