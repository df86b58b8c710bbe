#pragma once

#include "megatron/ops/activation.h"

namespace megatron::ops {

// y = x · wᵀ (+ bias). x [tokens, in], weight [out, in], bias [out]. The weight's gradient goes straight into
// its main_grad, at once or, with ctx.defer_weight_grads, in the tape's weight step.
Tensor linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias = {});

// y = linear(x, weight, bias), [gate | up] where a gate is, and the activation of it, by one kernel where the
// device has that and is faster by it. Gradients go through y alone: `active` is for activated_linear().
struct ActivatedLinear {
  Tensor y, active;
};
ActivatedLinear linear_activated(RankContext& ctx, const ActivationOptions& options, const Tensor& x,
                                 const Weight& weight, const Weight& bias = {});

// x + bias, bias [last dimension of x].
Tensor add_bias(RankContext& ctx, const Tensor& x, const Weight& bias);

}  // namespace megatron::ops
