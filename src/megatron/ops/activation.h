#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// y = f(x + bias), bias [last dimension] optional.
Tensor activation(RankContext& ctx, Unary kind, const Tensor& x, const Weight& bias = {});

// What stands between the two GEMMs of an MLP.
struct ActivationOptions {
  Unary kind = Unary::Silu;  // Silu: SwiGLU; Gelu or GeluTanh: GeGLU; Relu: ReGLU; Sigmoid: GLU; QuickGelu
  double limit = 0;          // above 0: gate ≤ limit, |up| ≤ limit (gpt-oss)
  double up_offset = 0;      // added to up
  bool gated = true;         // false: f(x) alone, without what gates have

  int64_t inputs() const { return gated ? 2 : 1; }  // for each output
  // Those that a GEMM can take along: silu(gate) · up and no more, and GELU by its tanh form.
  bool swiglu() const { return gated && kind == Unary::Silu && limit <= 0 && up_offset == 0; }
  bool gelu_tanh() const { return !gated && kind == Unary::GeluTanh; }
};

// y = f(gate) · (up + up_offset) of x + bias = [gate | up] in the last dimension, which y has half of.
Tensor gated_activation(RankContext& ctx, const ActivationOptions& options, const Tensor& x,
                        const Weight& bias = {});
// The activation of x, gated or not, into y, contiguous as x is, without a bias and unrecorded.
void apply_activation(RankContext& ctx, const ActivationOptions& options, const Tensor& x, const Tensor& y);

}  // namespace megatron::ops
