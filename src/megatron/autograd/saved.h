#pragma once

#include <memory>

#include "megatron/tensor/tensor.h"

namespace megatron {

struct RankContext;

// A tensor kept from forward to backward in another form: offloaded to the host, quantised.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  virtual Tensor unpack(RankContext& ctx) = 0;
};

// Decides what is packed. Returning null keeps the tensor as it is.
class SavedTensorPacker {
 public:
  virtual ~SavedTensorPacker() = default;
  virtual std::unique_ptr<PackedTensor> pack(RankContext& ctx, const Tensor& tensor) = 0;
};

// What a node keeps for its backward pass; the one seam for offload and compression.
class Saved {
 public:
  Saved() = default;
  Saved(RankContext& ctx, const Tensor& tensor);
  Tensor get(RankContext& ctx) const { return packed_ ? packed_->unpack(ctx) : tensor_; }
  void reset() {
    tensor_ = {};
    packed_.reset();
  }

 private:
  Tensor tensor_;
  std::unique_ptr<PackedTensor> packed_;
};

}  // namespace megatron
