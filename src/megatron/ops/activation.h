#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// y = f(x + bias), bias [last dimension] optional.
Tensor activation(RankContext& ctx, Unary kind, const Tensor& x, const Weight& bias = {});

struct GatedOptions {
  Unary kind = Unary::Silu;  // Silu: SwiGLU; Gelu or GeluTanh: GeGLU; Relu: ReGLU; Sigmoid: GLU; QuickGelu
  double limit = 0;          // above 0: gate ≤ limit, |up| ≤ limit (gpt-oss)
  double up_offset = 0;      // added to up
};

// Whether it is silu(gate) · up and no more.
inline bool swiglu(const GatedOptions& options) {
  return options.kind == Unary::Silu && options.limit <= 0 && options.up_offset == 0;
}

// y = f(gate) · (up + up_offset) of x + bias = [gate | up] in the last dimension, which y has half of.
Tensor gated_activation(RankContext& ctx, const GatedOptions& options, const Tensor& x,
                        const Weight& bias = {});
// The same into y, contiguous as x is, without a bias and unrecorded.
void apply_gate(RankContext& ctx, const GatedOptions& options, const Tensor& x, const Tensor& y);

}  // namespace megatron::ops
