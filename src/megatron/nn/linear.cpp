#include "megatron/nn/linear.h"

namespace megatron {
namespace {

// What the GEMM reads is rounded, so that an activation before it is an op of its own.
Tensor rounded_input(RankContext& ctx, const Tensor& x, const ops::FakeQuantizer& quantizer,
                     ops::LinearCall& call) {
  Tensor input = x;
  if (const auto& options = call.input_activation)
    input = options->gated ? ops::gated_activation(ctx, *options, x) : ops::activation(ctx, options->kind, x);
  call.input_activation.reset();
  call.active = {};
  return ops::fake_quantize(ctx, input, *quantizer.input, quantizer.input_share);
}

}  // namespace

ops::LinearResult apply_linear(RankContext& ctx, const Tensor& x, Parameter& weight, ops::LinearCall call) {
  call.fp8 = weight.fp8.get();
  call.adapter = weight.adapter.get();
  if (ctx.probe && call.offsets) ctx.show(weight.name, "offsets", call.offsets);
  ctx.show(weight.name, call.input_activation ? "before_activation0" : "input0", x);
  Weight read = weight.get_adapted(ctx);
  Tensor input = x;
  if (ops::FakeQuantizer* quantizer = weight.fake_quantizer.get()) {
    if (quantizer->input) input = rounded_input(ctx, x, *quantizer, call);
    read.value = quantizer->rounded(ctx, read.value);
  }
  ops::LinearResult result = ops::call_linear(ctx, input, read, call);
  ctx.show(weight.name, "output0", result.y);
  return result;
}

}  // namespace megatron
