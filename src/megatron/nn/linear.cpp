#include "megatron/nn/linear.h"

namespace megatron {

ops::LinearResult apply_linear(RankContext& ctx, const Tensor& x, Parameter& weight, ops::LinearCall call) {
  call.fp8 = weight.fp8.get();
  call.adapter = weight.adapter.get();
  if (ctx.probe && call.offsets) ctx.show(weight.name, "offsets", call.offsets);
  ctx.show(weight.name, call.input_activation ? "before_activation0" : "input0", x);
  ops::LinearResult result = ops::call_linear(ctx, x, weight.get_adapted(ctx), call);
  ctx.show(weight.name, "output0", result.y);
  return result;
}

}  // namespace megatron
