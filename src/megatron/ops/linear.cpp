#include "megatron/ops/linear.h"

#include "megatron/ops/check.h"
#include "megatron/ops/grouped_format.h"
#include "megatron/ops/linear_node.h"
#include "megatron/ops/quantized_weight.h"

namespace megatron::ops {
namespace {

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

const char* name_of(const LinearCall& call) {
  return call.offsets            ? "grouped_linear"
         : call.input_activation ? "activated_linear"
         : call.route            ? call.route->name()
         : call.fp8              ? "fp8_linear"
                                 : "linear";
}

// What does not go together is refused by its name.
void check_combination(const char* op, const LinearCall& call) {
  const auto refuse = [op](bool both, const char* what, const char* with, const char* fix) {
    require(!both, "{}: {} with {} is not built; {}", op, what, with, fix);
  };
  const bool grouped = call.offsets.defined();
  refuse(grouped && call.route, "a matrix per expert", "rows of other ranks", "dispatch them before");
  refuse(grouped && call.bias.defined(), "a matrix per expert", "a bias",
         "add the bias of each row's expert");
  refuse(grouped && call.adapter, "a matrix per expert", "an adapter", "adapt other weights");
  refuse(call.route && call.route->gathers_gradient() && call.bias.defined(), "a sum over ranks", "a bias",
         "add it behind the sum");
}

void check_call(RankContext& ctx, const Tensor& x, const Weight& weight, const LinearCall& call) {
  const char* op = name_of(call);
  const Tensor& w = weight.value;
  check_combination(op, call);
  check_input(ctx, op, "x", x);
  check_input(ctx, op, "weight", w);
  check_floating(op, "x", x);
  const int64_t inputs = call.input_activation ? call.input_activation->inputs() : 1;
  const char* columns = inputs == 2 ? "2 in (gate, then up)" : "in";
  if (call.offsets) {
    require(x.rank() == 2 && w.rank() == 3 && x.size(1) == inputs * columns_of(weight),
            "{}: x {} and weight {} do not fit; they must be [rows, {}] and [experts, out, in]", op, x, w,
            columns);
    check_input(ctx, op, "offsets", call.offsets);
    check_dtype(op, "offsets", call.offsets, DType::I32);
    check_shape(op, "offsets", call.offsets, {w.size(0) + 1});
  } else {
    require(x.rank() == 2 && w.rank() == 2 && x.size(1) == inputs * columns_of(weight),
            "{}: x {} and weight {} do not fit; they must be [tokens, {}] and [out, in]", op, x, w, columns);
  }
  if (call.fp8)
    check_dtype(op, "weight", w, x.dtype());
  else
    check_weight(ctx, op, weight, x.dtype());
  check_vector(ctx, op, "bias", call.bias.value, w.size(-2), x.dtype());
  if (call.active) check_shape(op, "the activation", call.active, {x.size(0), columns_of(weight)});
  if (call.output_activation)
    require(w.size(-2) % call.output_activation->inputs() == 0,
            "{}: weight {} must have as many rows for up as for the gate", op, w);
}

std::shared_ptr<const LinearFormat> format_of(RankContext& ctx, const Tensor& x, const Weight& weight,
                                              const LinearCall& call, bool recorded) {
  if (call.offsets)
    return grouped_fp8_takes(x.size(0), call.fp8, weight.value.shape())
               ? grouped_fp8_format(ctx, weight.value, *call.fp8, call.offsets, recorded)
               : grouped_format(call.offsets);
  const int64_t rows = call.route ? call.route->block_rows(x.size(0)) : x.size(0);
  if (call.fp8 && fp8_takes(rows, weight.value)) return fp8_format(ctx, weight.value, *call.fp8, recorded);
  return weight.scale ? quantized_weight_format() : plain_format();
}

// y and its activation by one kernel; false where there is none.
bool multiply_and_activate(RankContext& ctx, const ActivationOptions& options, const Tensor& x,
                           const Tensor& w, const Tensor& bias, const Tensor& y, const Tensor& active) {
  const bool done =
      options.swiglu()
          ? !bias && ctx.kernels->gemm_swiglu(ctx.kernel_context(), {x, w, y, active, true})
          : options.gelu_tanh() && ctx.kernels->gemm_gelu(ctx.kernel_context(), {x, w, bias, y, active});
  if (done)
    trace(ctx, "linear_activated", Phase::Forward, 2.0 * x.numel() * w.size(0), {&x, &w, &y, &active});
  return done;
}

}  // namespace

LinearResult call_linear(RankContext& ctx, const Tensor& x, const Weight& weight, const LinearCall& call) {
  check_call(ctx, x, weight, call);
  const Tensor& w = weight.value;
  const int64_t out = w.size(-2);
  const bool recorded =
      needs_grad(ctx, {&x}, {&weight, &call.bias}) || (ctx.tape && call.adapter && call.adapter->trainable());
  const std::shared_ptr<const LinearFormat> format = format_of(ctx, x, weight, call, recorded);
  const bool plain = format == plain_format(), gathers = call.route && call.route->gathers_input();

  // Only a plain GEMM of all of x takes it with gaps.
  const Tensor own = plain && !call.route && !call.input_activation ? x.detach() : detach_contiguous(ctx, x);
  Tensor input = own;
  if (call.input_activation) {
    input = call.active;
    if (!input) {
      input = ctx.empty({x.size(0), columns_of(weight)}, x.dtype());
      apply_activation(ctx, *call.input_activation, own, input);
    }
  }
  Operand operand;
  if (!gathers) operand = format->quantize(ctx, input, LinearFormat::Side::Input);
  if (operand.wide && !call.input_activation) operand.wide = x;  // may be made again instead of kept

  const auto gemm = [&](const Tensor& rows, int64_t begin, const Tensor& y) {
    const Operand part = gathers ? format->quantize(ctx, rows, LinearFormat::Side::Input)
                                 : operand.rows(ctx, begin, rows.size(0));
    format->forward(ctx, part, weight, call.adapter ? Tensor{} : call.bias.value, y);
    if (!call.adapter) return;
    call.adapter->forward(ctx, rows, begin, y);
    if (call.bias.defined())
      ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, y, call.bias.value.expand(y.shape()), y});
  };
  LinearResult result;
  bool activated = false;
  const auto place_for_activation = [&] {
    const Tensor& y = result.y;
    result.active = ctx.empty({y.size(0), out / call.output_activation->inputs()}, y.dtype());
  };
  if (call.route) {
    result.y = call.route->forward(ctx, input, out, gemm);
  } else {
    result.y = ctx.empty({x.size(0), out}, x.dtype());
    if (call.output_activation && plain && !call.adapter) {
      place_for_activation();
      activated = multiply_and_activate(ctx, *call.output_activation, input, w.detach(), call.bias.value,
                                        result.y, result.active);
    }
    if (!activated) gemm(input, 0, result.y);
  }
  if (call.output_activation && !activated) {
    if (!result.active) place_for_activation();
    apply_activation(ctx, *call.output_activation, result.y, result.active);
  }
  if (recorded)
    record(ctx,
           std::make_unique<LinearNode>(ctx, format, own.with_grad_slot(x.grad_slot()), input, operand,
                                        weight, call),
           result.y);
  return result;
}

Tensor linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias) {
  return call_linear(ctx, x, weight, {.bias = bias}).y;
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
