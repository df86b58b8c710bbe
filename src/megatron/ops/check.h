#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// The tensor exists and lives where this rank computes.
inline void check_input(const RankContext& ctx, const char* op, const char* what, const Tensor& tensor) {
  require(tensor.defined(), "{}: {} is an undefined tensor", op, what);
  require(tensor.device() == ctx.device, "{}: {} is {}, but this rank computes on {}", op, what, tensor,
          ctx.device);
}

inline void check_shape(const char* op, const char* what, const Tensor& tensor, const Shape& wanted) {
  require(tensor.shape() == wanted, "{}: {} is {}, but its shape must be {}", op, what, tensor, wanted);
}

inline void check_dtype(const char* op, const char* what, const Tensor& tensor, DType wanted) {
  require(tensor.dtype() == wanted, "{}: {} is {}, but its dtype must be {}", op, what, tensor, wanted);
}

// Whether this call must be recorded: something that it reads wants a gradient.
inline bool recording(const RankContext& ctx, std::initializer_list<const Tensor*> inputs,
                      std::initializer_list<const Weight*> weights = {}) {
  if (!ctx.tape) return false;
  bool wanted = false;
  for (const Tensor* input : inputs) wanted |= input->defined() && ctx.tracks(*input);
  for (const Weight* weight : weights) wanted |= weight->trainable();
  return wanted;
}

}  // namespace megatron::ops
