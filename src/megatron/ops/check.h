#pragma once

#include <optional>

#include "megatron/autograd/op_listener.h"
#include "megatron/autograd/rank_context.h"
#include "megatron/kernels/narrow_weight.h"

namespace megatron::ops {

// The tensor exists and lives where this rank computes.
inline void check_input(const RankContext& ctx, const char* op, const char* what, const Tensor& tensor) {
  require(tensor.defined(), "{}: {} is an undefined tensor", op, what);
  require(tensor.device() == ctx.device, "{}: {} is {}, but this rank computes on {}", op, what, tensor,
          ctx.device);
  require(!tensor.storage().freed(), "{}: {} {} is read after its memory was given back", op, what, tensor);
}

inline void check_shape(const char* op, const char* what, const Tensor& tensor, const Shape& wanted) {
  require(tensor.shape() == wanted, "{}: {} is {}, but its shape must be {}", op, what, tensor, wanted);
}

inline void check_dtype(const char* op, const char* what, const Tensor& tensor, DType wanted) {
  require(tensor.dtype() == wanted, "{}: {} is {}, but its dtype must be {}", op, what, tensor, wanted);
}

// Every one of the contiguous int64 `ids` is in [0, size), or is `except`; `whole` says what has that size.
// Looked at on the CPU alone, where it costs one pass over the ids; on a device the host would have to wait.
void check_range(const RankContext& ctx, const char* op, const char* what, const Tensor& ids, int64_t size,
                 const char* whole, std::optional<int64_t> except = {});

// Whether this call must be recorded: something that it reads wants a gradient.
inline bool needs_grad(const RankContext& ctx, std::initializer_list<const Tensor*> inputs,
                       std::initializer_list<const Weight*> weights = {}) {
  if (!ctx.tape) return false;
  bool wanted = false;
  for (const Tensor* input : inputs) wanted |= input->defined() && ctx.tracks(*input);
  for (const Weight* weight : weights) wanted |= weight->trainable();
  return wanted;
}

inline void check_floating(const char* op, const char* what, const Tensor& tensor) {
  require(is_floating(tensor.dtype()) && !is_fp8(tensor.dtype()),
          "{}: {} is {}, but it must be fp32, bf16, fp16 or fp64", op, what, tensor);
}

// A vector [size] that goes with activations of `dtype`; optional.
inline void check_vector(const RankContext& ctx, const char* op, const char* what, const Tensor& vector,
                         int64_t size, DType dtype) {
  if (!vector.defined()) return;
  check_input(ctx, op, what, vector);
  check_shape(op, what, vector, {size});
  check_dtype(op, what, vector, dtype);
}

// A weight [.., rows, columns] of the activations' dtype, or a narrow one with a scale for each group of a
// row or each 128 × 128.
inline void check_weight(const RankContext& ctx, const char* op, const Weight& weight, DType dtype) {
  if (!weight.scale) return check_dtype(op, "weight", weight.value, dtype);
  const bool gpu = ctx.device.type == DeviceType::Cuda;
  const DType small = weight.value.dtype();
  require(small == DType::I8 || small == (gpu ? DType::F8E4M3 : kInt4),
          "{}: weights of {} are not built for {}", op, small, ctx.device);
  require(dtype == DType::BF16 || (!gpu && dtype == DType::F32),
          "{}: x is {}, but beside a quantised weight it must be bf16, or on the CPU fp32", op, dtype);
  Shape scales = weight.value.shape();
  const int64_t group = scale_columns(small) / numbers_in_element(small);  // in elements
  scales[-1] = (scales[-1] + group - 1) / group;
  if (small == DType::F8E4M3 && weight.scale.size(-2) != scales[-2]) scales[-2] = (scales[-2] + 127) / 128;
  check_shape(op, "the weight's scale", weight.scale, scales);
}

// The tensor's values without gaps: itself, or a copy. Not differentiable.
inline Tensor detach_contiguous(RankContext& ctx, const Tensor& tensor) {
  if (!tensor.defined() || tensor.is_contiguous()) return tensor.detach();
  Tensor copy = ctx.empty(tensor.shape(), tensor.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {tensor.detach(), copy});
  return copy;
}

// Reports an op that reads and writes these tensors once each.
inline void trace(RankContext& ctx, const char* op, Phase phase, double flops,
                  std::initializer_list<const Tensor*> touched) {
  if (!ctx.tracer) return;
  double bytes = 0;
  for (const Tensor* tensor : touched)
    if (tensor->defined()) bytes += static_cast<double>(tensor->bytes());
  trace_op(ctx.tracer, op, phase, {flops, bytes}, touched);
}

// Tokens form the sequences that are said.
inline void check_rows(const char* op, const Tensor& x, const SequenceRows& rows) {
  require(rows.count > 0, "{}: there is no sequence", op);
  if (rows.cu.defined())
    check_shape(op, "cu_seqlens", rows.cu, {rows.count + 1});
  else
    require(x.size(0) % rows.count == 0, "{}: {} tokens are not {} sequences of one length", op, x.size(0),
            rows.count);
}

// A matrix whose rows are contiguous, wherever they lie: itself, or a copy. Not differentiable.
inline Tensor detach_row_contiguous(RankContext& ctx, const Tensor& tensor) {
  return tensor.rank() == 2 && (tensor.stride(1) == 1 || tensor.size(1) == 1)
             ? tensor.detach()
             : detach_contiguous(ctx, tensor);
}

// accumulator.main_grad (+)= grad, whose elements are the weight's, in the accumulation dtype.
inline void accumulate_grad(RankContext& ctx, const Tensor& grad, const Weight& weight) {
  if (!weight.accumulator) return;
  GradAccumulator& accumulator = *weight.accumulator;
  const Tensor& target = accumulator.target(ctx);
  ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 1,
                                            .a = grad.view(target.shape()),
                                            .beta = 1,
                                            .b = accumulator.has_value() ? target : Tensor{},
                                            .out = target});
  accumulator.contribute(ctx);
}

// accumulator.main_grad (+)= Σ over rows of grad [rows, n]: the gradient of a bias.
inline void add_row_sum(RankContext& ctx, const char* op, const Tensor& grad, GradAccumulator& accumulator) {
  int64_t n = grad.size(-1);
  ctx.kernels->reduce(ctx.kernel_context(), {.kind = Reduction::Sum,
                                             .x = grad,
                                             .out = accumulator.target(ctx),
                                             .outer = 1,
                                             .n = n ? grad.numel() / n : 0,
                                             .inner = n,
                                             .accumulate = accumulator.has_value()});
  trace(ctx, op, Phase::BackwardData, static_cast<double>(grad.numel()), {&grad});
  accumulator.contribute(ctx);
}

}  // namespace megatron::ops
