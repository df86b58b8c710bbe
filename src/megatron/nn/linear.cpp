#include "megatron/nn/linear.h"

namespace megatron {

ops::LinearResult apply_linear(RankContext& ctx, const Tensor& x, Parameter& weight, ops::LinearCall call) {
  call.fp8 = weight.fp8.get();
  call.adapter = weight.adapter.get();
  return ops::call_linear(ctx, x, weight.get_adapted(ctx), call);
}

}  // namespace megatron
