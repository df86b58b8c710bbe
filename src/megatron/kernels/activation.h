#pragma once

#include "megatron/kernels/elementwise.h"

namespace megatron {

// y[r, j] = f(gate) · (up + up_offset), x[r] = gate (first half) then up (second half), after adding bias
// [2f]. `kind` is the gate's function (Silu, Gelu, GeluTanh, QuickGelu, Relu, Sigmoid). With limit > 0, gate
// is clamped from above and up on both sides first (gpt-oss).
struct GatedArgs {
  Unary kind = Unary::Silu;
  Tensor x, bias, y;
  double limit = 0, up_offset = 0;
};
struct GatedBackwardArgs {
  Unary kind = Unary::Silu;
  Tensor x, bias, dy, dx;  // dx may be x
  Tensor y;                // optional: receives the forward result again, where it was not kept
  double limit = 0, up_offset = 0;
};

}  // namespace megatron
