#pragma once

#include <optional>

#include "megatron/ops/activation.h"
#include "megatron/ops/fp8_format.h"
#include "megatron/ops/linear_adapter.h"
#include "megatron/ops/linear_route.h"

namespace megatron::ops {

// y = x · wᵀ (+ bias). x [tokens, in], weight [out, in], bias [out]. The weight's gradient goes straight into
// its main_grad, at once or, with ctx.defer_weight_grads, in the tape's weight step.
Tensor linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias = {});

// What a linear may have beside x and its weight. All of it goes together but what call_linear() refuses.
struct LinearCall {
  Weight bias = {};
  // Number format: fp8 where set and where the hardware's GEMMs take the shape (all three sizes are multiples
  // of 16); otherwise that of x, with weights of 8 bits where the weight has scales.
  Fp8Weight* fp8 = nullptr;
  // One linear per expert: rows [offsets[e], offsets[e + 1]) go through weight[e] of [experts, out, in].
  // int32 [experts + 1], on the device. Rows from offsets[experts] on belong to no expert and hold no values,
  // neither in the result nor in the gradient of x. In fp8 offsets and rows are multiples of
  // grouped_fp8_alignment(); rows that are none stay as they are.
  Tensor offsets = {};
  std::shared_ptr<const LinearRoute> route = {};  // null: all rows are this rank's
  const LinearAdapter* adapter = nullptr;         // lives as long as the tape

  // The GEMM reads the activation of x, [gate | up] where it is gated. `active` is that activation where it
  // was made before. The node keeps x and, where told to, the activation; that is otherwise made again when
  // the backward pass reads x, for a gate at the price of writing it.
  std::optional<ActivationOptions> input_activation = {};
  bool keep_active = true;
  Tensor active = {};

  // The activation of y beside it, by the GEMM's epilogue where the device has that and is faster by it.
  std::optional<ActivationOptions> output_activation = {};
};

struct LinearResult {
  Tensor y, active;  // gradients go through y alone: `active` is for an input_activation
};
LinearResult call_linear(RankContext& ctx, const Tensor& x, const Weight& weight, const LinearCall& call);

// x + bias, bias [last dimension of x].
Tensor add_bias(RankContext& ctx, const Tensor& x, const Weight& bias);

}  // namespace megatron::ops
