#include "megatron/ops/delta_rule.h"

#include "megatron/ops/recurrent_state.h"

namespace megatron::ops {
namespace {

double rule_flops(const DeltaRuleArgs& args) {
  return 8.0 * static_cast<double>(args.qkv.size(0) * args.value_heads) *
         static_cast<double>(args.key_channels * args.value_channels);
}

class DeltaRuleNode final : public Node {
 public:
  DeltaRuleNode(RankContext& ctx, const DeltaRuleArgs& args, const Tensor& qkv, const Tensor& b,
                const Tensor& a, const Weight& a_log, const Weight& dt_bias)
      : args_(args),
        qkv_(ctx, args.qkv),
        b_(ctx, args.b),
        a_(ctx, args.a),
        qkv_slot_(qkv.grad_slot()),
        b_slot_(b.grad_slot()),
        a_slot_(a.grad_slot()),
        a_log_(a_log),
        dt_bias_(dt_bias) {
    args_.qkv = args_.b = args_.a = args_.o = {};  // kept packed, or not at all
    for (const Weight* w : {&a_log_, &dt_bias_})
      if (w->accumulator) w->accumulator->expect_use();
  }
  const char* name() const override { return "delta_rule"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    args_.qkv = qkv_.get(ctx);
    args_.b = b_.get(ctx);
    args_.a = a_.get(ctx);
    const DType dtype = args_.qkv.dtype(), wide = accumulation_dtype(dtype);
    Tensor d_o = tape.take_grad(output());
    if (!d_o) d_o = ctx.zeros({args_.qkv.size(0), args_.value_heads * args_.value_channels}, dtype);
    DeltaRuleBackwardArgs args{.forward = args_,
                               .d_o = d_o,
                               .dqkv = ctx.empty(args_.qkv.shape(), dtype),
                               .db = ctx.empty(args_.b.shape(), dtype),
                               .da = ctx.empty(args_.a.shape(), dtype),
                               .da_log = ctx.empty(args_.a_log.shape(), wide),
                               .ddt_bias = ctx.empty(args_.a_log.shape(), wide)};
    ctx.kernels->delta_rule_backward(ctx.kernel_context(), args);
    trace(ctx, "delta_rule", Phase::BackwardData, 3 * rule_flops(args_),
          {&args_.qkv, &args_.b, &args_.a, &d_o, &args.dqkv, &args.db, &args.da, &args_.before});
    accumulate_grad(ctx, args.da_log, a_log_);
    accumulate_grad(ctx, args.ddt_bias, dt_bias_);
    tape.add_grad(ctx, qkv_slot_, args.dqkv);
    tape.add_grad(ctx, b_slot_, args.db);
    tape.add_grad(ctx, a_slot_, args.da);
    args_ = {};
    qkv_.reset();
    b_.reset();
    a_.reset();
  }

 private:
  DeltaRuleArgs args_;
  Saved qkv_, b_, a_;
  GradSlot qkv_slot_, b_slot_, a_slot_;
  Weight a_log_, dt_bias_;
};

}  // namespace

Tensor delta_rule(RankContext& ctx, const Tensor& qkv, const Tensor& b, const Tensor& a, const Weight& a_log,
                  const Weight& dt_bias, const DeltaRuleOptions& options, const SequenceRows& rows,
                  const Tensor& state) {
  const auto& [key_heads, value_heads, key_channels, value_channels, chunk] = options;
  require(key_heads > 0 && value_heads % key_heads == 0 && chunk > 0,
          "delta_rule: {} value heads cannot share {} key heads in chunks of {}", value_heads, key_heads,
          chunk);
  check_input(ctx, "delta_rule", "qkv", qkv);
  check_floating("delta_rule", "qkv", qkv);
  const int64_t tokens = qkv.size(0);
  const DType wide = accumulation_dtype(qkv.dtype());
  check_shape("delta_rule", "qkv", qkv,
              {tokens, 2 * key_heads * key_channels + value_heads * value_channels});
  for (auto [what, gate] : {std::pair{"b", &b}, {"a", &a}}) {
    check_input(ctx, "delta_rule", what, *gate);
    check_shape("delta_rule", what, *gate, {tokens, value_heads});
    check_dtype("delta_rule", what, *gate, qkv.dtype());
  }
  check_rows("delta_rule", qkv, rows);
  check_input(ctx, "delta_rule", "a_log", a_log.value);
  check_input(ctx, "delta_rule", "dt_bias", dt_bias.value);
  check_vector(ctx, "delta_rule", "a_log", a_log.value, value_heads, wide);
  check_vector(ctx, "delta_rule", "dt_bias", dt_bias.value, value_heads, wide);

  DeltaRuleArgs args{.rows = rows,
                     .key_heads = key_heads,
                     .value_heads = value_heads,
                     .key_channels = key_channels,
                     .value_channels = value_channels,
                     .chunk = chunk,
                     .qkv = detach_row_contiguous(ctx, qkv),
                     .b = detach_row_contiguous(ctx, b),
                     .a = detach_row_contiguous(ctx, a),
                     .a_log = a_log.value,
                     .dt_bias = dt_bias.value,
                     .o = ctx.empty({tokens, value_heads * value_channels}, qkv.dtype()),
                     .before = {},
                     .state = state};
  const bool recorded = needs_grad(ctx, {&qkv, &b, &a}, {&a_log, &dt_bias});
  check_recurrent_state(ctx, "delta_rule", state, {rows.count, value_heads, key_channels, value_channels},
                        wide, recorded);
  if (recorded)
    args.before =
        ctx.empty({chunk_slots(tokens, rows.count, chunk), value_heads, key_channels, value_channels}, wide);
  ctx.kernels->delta_rule(ctx.kernel_context(), args);
  trace(ctx, "delta_rule", Phase::Forward, rule_flops(args), {&qkv, &b, &a, &args.o, &args.before});
  Tensor o = args.o;
  if (recorded) record(ctx, std::make_unique<DeltaRuleNode>(ctx, args, qkv, b, a, a_log, dt_bias), o);
  return o;
}

}  // namespace megatron::ops
