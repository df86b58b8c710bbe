#pragma once

#include "megatron/ops/activation.h"

namespace megatron::ops {

// linear(gated_activation(x), weight, bias) in one node that keeps x alone: the activation, as large as half
// of x, is made again on the way when the backward pass reads x, at the price of writing it.
Tensor gated_linear(RankContext& ctx, const GatedOptions& options, const Tensor& x, const Weight& weight,
                    const Weight& bias = {});

}  // namespace megatron::ops
