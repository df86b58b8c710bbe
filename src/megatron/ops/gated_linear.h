#pragma once

#include "megatron/ops/activation.h"

namespace megatron::ops {

// linear(gated_activation(x), weight, bias) in one node. `active` is that activation, where linear_gated()
// has made it. The node keeps x and, unless told not to, the activation, half as large; that is then made
// again on the way when the backward pass reads x, at the price of writing it.
struct GatedLinearOptions {
  GatedOptions gate;
  bool keep_active = false;
};
Tensor gated_linear(RankContext& ctx, const GatedLinearOptions& options, const Tensor& x,
                    const Weight& weight, const Weight& bias = {}, Tensor active = {});

}  // namespace megatron::ops
