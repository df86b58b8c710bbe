#include "megatron/ops/gated_norm.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

class GatedNormNode final : public Node {
 public:
  GatedNormNode(RankContext& ctx, const GatedNormOptions& options, const GatedNormArgs& args, const Tensor& x,
                const Tensor& gate, const Weight& weight)
      : options_(options),
        whole_(args.width == 0),
        width_(whole_ ? args.x.size(1) / options.groups : args.width),
        x_(ctx, args.x),
        gate_(ctx, args.gate),
        squares_(args.squares),
        x_slot_(x.grad_slot()),
        gate_slot_(gate.grad_slot()),
        weight_(weight) {
    if (weight_.accumulator) weight_.accumulator->expect_use();
  }
  const char* name() const override { return "gated_norm"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor x = x_.get(ctx), gate = gate_.get(ctx), dy = tape.take_grad(output());
    if (!dy) dy = ctx.zeros(x.shape(), x.dtype());
    Tensor along;
    if (!whole_) {
      along = ctx.empty(squares_.shape(), squares_.dtype());
      ctx.kernels->gated_norm_sums(ctx.kernel_context(), {.gate_first = options_.gate_first,
                                                          .x = x,
                                                          .gate = gate,
                                                          .weight = weight_.value,
                                                          .dy = dy,
                                                          .sums = along});
      if (options_.sum_over_ranks) options_.sum_over_ranks(ctx, along);
    }
    GatedNormBackwardArgs args{.gate_first = options_.gate_first,
                               .epsilon = options_.epsilon,
                               .width = width_,
                               .x = x,
                               .gate = gate,
                               .weight = weight_.value,
                               .squares = squares_,
                               .dy = dy,
                               .along = along,
                               .dx = ctx.empty(x.shape(), x.dtype()),
                               .dgate = ctx.empty(x.shape(), x.dtype())};
    if (weight_.accumulator) args.dweight = ctx.empty(weight_.value.shape(), squares_.dtype());
    ctx.kernels->gated_norm_backward(ctx.kernel_context(), args);
    trace(ctx, "gated_norm", Phase::BackwardData, 24.0 * static_cast<double>(x.numel()),
          {&x, &gate, &dy, &args.dx, &args.dgate});
    accumulate_grad(ctx, args.dweight, weight_);
    tape.add_grad(ctx, x_slot_, args.dx);
    tape.add_grad(ctx, gate_slot_, args.dgate);
    x_.reset();
    gate_.reset();
  }

 private:
  GatedNormOptions options_;
  bool whole_;
  int64_t width_;
  Saved x_, gate_;
  Tensor squares_;
  GradSlot x_slot_, gate_slot_;
  Weight weight_;
};

}  // namespace

Tensor gated_norm(RankContext& ctx, const Tensor& x, const Tensor& gate, const Weight& weight,
                  const GatedNormOptions& options) {
  check_input(ctx, "gated_norm", "x", x);
  check_floating("gated_norm", "x", x);
  require(x.rank() == 2 && options.groups > 0 && x.size(1) % options.groups == 0,
          "gated_norm: x {} must be [tokens, channels] with a multiple of {} channels", x, options.groups);
  check_input(ctx, "gated_norm", "gate", gate);
  check_shape("gated_norm", "gate", gate, x.shape());
  check_dtype("gated_norm", "gate", gate, x.dtype());
  const int64_t size = x.size(1) / options.groups;
  require(weight.defined(), "gated_norm: the weight is an undefined tensor");
  check_vector(ctx, "gated_norm", "weight", weight.value, weight.value.numel() == size ? size : x.size(1),
               x.dtype());

  const int64_t width = options.width ? options.width : size;
  const bool whole = !options.sum_over_ranks && width == size;  // then the kernels make the sums on their way
  GatedNormArgs args{.gate_first = options.gate_first,
                     .epsilon = options.epsilon,
                     .width = whole ? 0 : width,
                     .x = detach_row_contiguous(ctx, x),
                     .gate = detach_row_contiguous(ctx, gate),
                     .weight = weight.value,
                     .squares = ctx.empty({x.size(0), options.groups}, accumulation_dtype(x.dtype())),
                     .y = ctx.empty(x.shape(), x.dtype())};
  if (!whole)
    ctx.kernels->gated_norm_sums(
        ctx.kernel_context(),
        {.gate_first = options.gate_first, .x = args.x, .gate = args.gate, .sums = args.squares});
  if (options.sum_over_ranks) options.sum_over_ranks(ctx, args.squares);
  ctx.kernels->gated_norm(ctx.kernel_context(), args);
  trace(ctx, "gated_norm", Phase::Forward, 10.0 * static_cast<double>(x.numel()), {&x, &gate, &args.y});
  if (needs_grad(ctx, {&x, &gate}, {&weight}))
    record(ctx, std::make_unique<GatedNormNode>(ctx, options, args, x, gate, weight), args.y);
  return args.y;
}

}  // namespace megatron::ops
