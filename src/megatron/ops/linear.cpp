#include "megatron/ops/linear.h"

#include "megatron/ops/check.h"
#include "megatron/ops/linear_node.h"

namespace megatron::ops {
namespace {

double gemm_flops(const Tensor& x, const Tensor& w) { return 2.0 * x.numel() * w.size(0); }

class AddBiasNode final : public Node {
 public:
  AddBiasNode(const Tensor& x, const Weight& bias) : x_slot_(x.grad_slot()), bias_(bias) {
    if (bias_.accumulator) bias_.accumulator->expect_use();
  }
  const char* name() const override { return "add_bias"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    if (bias_.accumulator) add_row_sum(ctx, "add_bias", dy, *bias_.accumulator);
    tape.add_grad(ctx, x_slot_, std::move(dy));
  }

 private:
  GradSlot x_slot_;
  Weight bias_;
};

void check_operands(RankContext& ctx, const Tensor& x, const Weight& weight, const Tensor& bias) {
  const Tensor& w = weight.value;
  check_input(ctx, "linear", "x", x);
  check_input(ctx, "linear", "weight", w);
  require(x.rank() == 2 && w.rank() == 2 && x.size(1) == w.size(1),
          "linear: x {} and weight {} do not fit; they must be [tokens, in] and [out, in]", x, w);
  check_weight(ctx, "linear", weight, x.dtype());
  check_vector(ctx, "linear", "bias", bias, w.size(0), x.dtype());
}

// By one kernel; false where there is none.
bool multiply_and_activate(RankContext& ctx, const ActivationOptions& options, const Tensor& x,
                           const Tensor& w, const Tensor& bias, const Tensor& y, const Tensor& active) {
  if (options.swiglu()) return !bias && ctx.kernels->gemm_swiglu(ctx.kernel_context(), {x, w, y, active});
  return options.gelu_tanh() && ctx.kernels->gemm_gelu(ctx.kernel_context(), {x, w, bias, y, active});
}

std::shared_ptr<const LinearFormat> shared_plain() { return {std::shared_ptr<void>(), &plain_format()}; }

void record_linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias, Tensor& y) {
  if (needs_grad(ctx, {&x}, {&weight, &bias}))
    record(ctx,
           std::make_unique<LinearNode>(ctx, shared_plain(), Operand{.data = x}, x.grad_slot(), weight, bias),
           y);
}

}  // namespace

Tensor linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias) {
  check_operands(ctx, x, weight, bias.value);
  Tensor y = ctx.empty({x.size(0), weight.value.size(0)}, x.dtype());
  plain_format().forward(ctx, {.data = x}, weight, bias.value, y);
  record_linear(ctx, x, weight, bias, y);
  return y;
}

ActivatedLinear linear_activated(RankContext& ctx, const ActivationOptions& options, const Tensor& x,
                                 const Weight& weight, const Weight& bias) {
  const Tensor& w = weight.value;
  check_operands(ctx, x, weight, bias.value);
  require(w.size(0) % options.inputs() == 0,
          "linear_activated: weight {} must have as many rows for up as for the gate", w);
  Tensor y = ctx.empty({x.size(0), w.size(0)}, x.dtype()),
         active = ctx.empty({x.size(0), w.size(0) / options.inputs()}, x.dtype());
  if (!weight.scale && multiply_and_activate(ctx, options, x.detach(), w.detach(), bias.value, y, active)) {
    trace(ctx, "linear_activated", Phase::Forward, gemm_flops(x, w), {&x, &w, &y, &active});
  } else {
    plain_format().forward(ctx, {.data = x}, weight, bias.value, y);
    apply_activation(ctx, options, y, active);
  }
  record_linear(ctx, x, weight, bias, y);
  return {y, active};
}

Tensor add_bias(RankContext& ctx, const Tensor& x, const Weight& bias) {
  check_input(ctx, "add_bias", "x", x);
  check_input(ctx, "add_bias", "bias", bias.value);
  check_shape("add_bias", "bias", bias.value, {x.size(-1)});
  check_dtype("add_bias", "bias", bias.value, x.dtype());
  Tensor y = ctx.empty(x.shape(), x.dtype());
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, x.detach(), bias.value.expand(x.shape()), y});
  ctx.trace("add_bias", Phase::Forward, static_cast<double>(x.numel()), 2.0 * x.bytes());
  if (needs_grad(ctx, {&x}, {&bias})) record(ctx, std::make_unique<AddBiasNode>(x, bias), y);
  return y;
}

}  // namespace megatron::ops
