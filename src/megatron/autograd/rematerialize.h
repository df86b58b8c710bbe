#pragma once

#include <functional>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// Within its life, saved tensors go through this packer; null: none.
class PackerScope {
 public:
  PackerScope(RankContext& ctx, SavedTensorPacker* packer)
      : ctx_(ctx), previous_(std::exchange(ctx.packer, packer)) {}
  ~PackerScope() { ctx_.packer = previous_; }
  PackerScope(const PackerScope&) = delete;
  PackerScope& operator=(const PackerScope&) = delete;

 private:
  RankContext& ctx_;
  SavedTensorPacker* previous_;
};

bool same_tensor(const Tensor& a, const Tensor& b);  // the same elements of the same memory

// How a tensor is made again, from things that are kept anyway.
using RecomputeFn = std::function<Tensor(RankContext&)>;

// Within its life, an op that saves `tensor` keeps the function in its place, and makes the tensor again
// when the gradient is wanted. So what is cheap to make need not be kept, and what consumed it is not
// computed twice. Other tensors go to the packer that was there before.
class Rematerialize final : public SavedTensorPacker {
 public:
  Rematerialize(RankContext& ctx, const Tensor& tensor, RecomputeFn recompute);
  std::unique_ptr<PackedTensor> pack(RankContext& ctx, const Tensor& tensor) override;

 private:
  Tensor tensor_;
  RecomputeFn recompute_;
  SavedTensorPacker* previous_;
  PackerScope scope_;
};

}  // namespace megatron
