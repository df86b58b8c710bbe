#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// What is added to a linear beside its weight, such as LoRA's low-rank update, or what scales it, such as
// DoRA's magnitudes. x and y are the rows that the GEMM sees: with a gathered input those of all ranks, with
// a sum over ranks those before it, so that adapters need no communication. Rows come in blocks; `begin` is
// the first one's index, by which random numbers can be keyed.
class LinearAdapter {
 public:
  virtual ~LinearAdapter() = default;
  virtual bool trainable() const = 0;
  virtual void expect_use() const = 0;  // of its weights' accumulators, when a node is recorded

  // Turns y = x · weightᵀ, without the bias, into the adapted result.
  virtual void forward(RankContext& ctx, const Tensor& x, int64_t begin, const Tensor& y) const = 0;
  // The gradient of x · weightᵀ, from that of the result, row by row. The calls below get this one.
  virtual Tensor gradient(RankContext&, const Tensor& dy) const { return dy; }
  // Adds the adapter's part to dx.
  virtual void dgrad(RankContext& ctx, const Tensor& dy, int64_t begin, const Tensor& dx) const = 0;
  // The gradients of its own weights, of all rows at once, and their contributions. `weight` is the linear's.
  virtual void wgrad(RankContext& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight) const = 0;
};

}  // namespace megatron::ops
