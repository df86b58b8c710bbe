#include "megatron/ops/ssd.h"

#include "megatron/ops/recurrent_state.h"

namespace megatron::ops {
namespace {

double scan_flops(const SsdArgs& args) {
  auto tokens = static_cast<double>(args.xbc.size(0)), chunk = static_cast<double>(args.chunk);
  auto values = static_cast<double>(args.heads * args.channels);
  auto shared = static_cast<double>(args.groups * args.states);
  return tokens * (chunk * (values + shared) + 6 * values * static_cast<double>(args.states));
}

class SsdNode final : public Node {
 public:
  SsdNode(RankContext& ctx, const SsdArgs& args, const Tensor& xbc, const Tensor& dt,
          const SsdWeights& weights)
      : args_(args),
        xbc_(ctx, args.xbc),
        dt_(ctx, args.dt),
        xbc_slot_(xbc.grad_slot()),
        dt_slot_(dt.grad_slot()),
        weights_(weights) {
    args_.xbc = args_.dt = args_.y = {};  // kept packed, or not at all
    for (const Weight* w : {&weights_.a_log, &weights_.d, &weights_.dt_bias})
      if (w->accumulator) w->accumulator->expect_use();
  }
  const char* name() const override { return "ssd"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    args_.xbc = xbc_.get(ctx);
    args_.dt = dt_.get(ctx);
    const Shape& heads = args_.a_log.shape();
    const DType dtype = args_.xbc.dtype(), wide = accumulation_dtype(dtype);
    Tensor dy = tape.take_grad(output());
    if (!dy) dy = ctx.zeros({args_.xbc.size(0), args_.heads * args_.channels}, dtype);
    SsdBackwardArgs args{.forward = args_,
                         .dy = dy,
                         .dxbc = ctx.empty(args_.xbc.shape(), dtype),
                         .ddt = ctx.empty(args_.dt.shape(), dtype),
                         .da_log = ctx.empty(heads, wide),
                         .dd = ctx.empty(heads, wide),
                         .ddt_bias = ctx.empty(heads, wide)};
    ctx.kernels->ssd_backward(ctx.kernel_context(), args);
    trace(ctx, "ssd", Phase::BackwardData, 2.5 * scan_flops(args_),
          {&args_.xbc, &args_.dt, &dy, &args.dxbc, &args.ddt, &args_.before});
    accumulate_grad(ctx, args.da_log, weights_.a_log);
    accumulate_grad(ctx, args.dd, weights_.d);
    accumulate_grad(ctx, args.ddt_bias, weights_.dt_bias);
    tape.add_grad(ctx, xbc_slot_, args.dxbc);
    tape.add_grad(ctx, dt_slot_, args.ddt);
    args_ = {};
    xbc_.reset();
    dt_.reset();
  }

 private:
  SsdArgs args_;
  Saved xbc_, dt_;
  GradSlot xbc_slot_, dt_slot_;
  SsdWeights weights_;
};

}  // namespace

Tensor ssd(RankContext& ctx, const Tensor& xbc, const Tensor& dt, const SsdWeights& weights,
           const SsdOptions& options, const SequenceRows& rows, const Tensor& state) {
  const auto& [heads, channels, groups, states, chunk, step_min, step_max] = options;
  require(heads > 0 && groups > 0 && heads % groups == 0 && chunk > 0,
          "ssd: {} groups cannot share {} heads in chunks of {}", groups, heads, chunk);
  check_input(ctx, "ssd", "xbc", xbc);
  check_floating("ssd", "xbc", xbc);
  const int64_t tokens = xbc.size(0);
  const DType wide = accumulation_dtype(xbc.dtype());
  check_shape("ssd", "xbc", xbc, {tokens, heads * channels + 2 * groups * states});
  check_input(ctx, "ssd", "dt", dt);
  check_shape("ssd", "dt", dt, {tokens, heads});
  check_dtype("ssd", "dt", dt, xbc.dtype());
  check_rows("ssd", xbc, rows);
  check_input(ctx, "ssd", "a_log", weights.a_log.value);
  check_input(ctx, "ssd", "d", weights.d.value);
  check_input(ctx, "ssd", "dt_bias", weights.dt_bias.value);
  check_vector(ctx, "ssd", "a_log", weights.a_log.value, heads, wide);
  check_vector(ctx, "ssd", "d", weights.d.value, heads, wide);
  check_vector(ctx, "ssd", "dt_bias", weights.dt_bias.value, heads, wide);

  SsdArgs args{.rows = rows,
               .heads = heads,
               .channels = channels,
               .groups = groups,
               .states = states,
               .chunk = chunk,
               .step_min = step_min,
               .step_max = step_max,
               .xbc = detach_row_contiguous(ctx, xbc),
               .dt = detach_row_contiguous(ctx, dt),
               .a_log = weights.a_log.value,
               .d = weights.d.value,
               .dt_bias = weights.dt_bias.value,
               .y = ctx.empty({tokens, heads * channels}, xbc.dtype()),
               .before = {},
               .state = state};
  const bool recorded = needs_grad(ctx, {&xbc, &dt}, {&weights.a_log, &weights.d, &weights.dt_bias});
  check_recurrent_state(ctx, "ssd", state, {rows.count, heads, channels, states}, wide, recorded);
  if (recorded)
    args.before = ctx.empty({chunk_slots(tokens, rows.count, chunk), heads, channels, states}, wide);
  ctx.kernels->ssd(ctx.kernel_context(), args);
  trace(ctx, "ssd", Phase::Forward, scan_flops(args), {&xbc, &dt, &args.y, &args.before});
  Tensor y = args.y;
  if (recorded) record(ctx, std::make_unique<SsdNode>(ctx, args, xbc, dt, weights), y);
  return y;
}

}  // namespace megatron::ops
