#pragma once

#include "megatron/ops/check.h"

namespace megatron::ops {

// A state that a scan moves on fits it, and nothing wants a gradient through it; optional.
inline void check_recurrent_state(const RankContext& ctx, const char* op, const Tensor& state,
                                  const Shape& shape, DType dtype, bool recorded) {
  if (!state.defined()) return;
  check_input(ctx, op, "state", state);
  check_shape(op, "state", state, shape);
  check_dtype(op, "state", state, dtype);
  require(state.is_contiguous() && !recorded, "{}: a state that is carried on has no gradient; use NoGrad",
          op);
}

}  // namespace megatron::ops
