#pragma once

#include "megatron/ops/activation.h"

namespace megatron::ops {

// linear(activation of x, weight, bias) in one node. `active` is that activation, where linear_activated()
// has made it. The node keeps x and, where told to, the activation; that is otherwise made again when the
// backward pass reads x, for a gate at the price of writing it.
struct ActivatedLinearOptions {
  ActivationOptions activation;
  bool keep_active = false;
};
Tensor activated_linear(RankContext& ctx, const ActivatedLinearOptions& options, const Tensor& x,
                        const Weight& weight, const Weight& bias = {}, Tensor active = {});

}  // namespace megatron::ops
