#pragma once

#include "megatron/autograd/saved.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// Saved tensors that every rank of a tensor-parallel group holds alike are kept in parts, one on each rank,
// and gathered when they are wanted. Tensors whose rows do not divide stay whole.
class SplitSaved final : public SavedTensorPacker {
 public:
  explicit SplitSaved(const TensorParallel& tp) : group_(tp.group) {}
  std::unique_ptr<PackedTensor> pack(RankContext& ctx, const Tensor& tensor) override;

 private:
  ProcessGroup group_;
};

}  // namespace megatron
