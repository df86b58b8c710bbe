#pragma once

#include "megatron/nn/shard_plan.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Plain host memory, of no rank's allocator: it may outlive the rank and be given back from any thread.
Tensor host_tensor(const Shape& shape, DType dtype);

// Host memory that tensors pass through one after the other. Pieces that fit into a core's cache are copied
// from there into the file; larger ones would go through main memory twice.
class StagingBuffer {
 public:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;
  Tensor tensor(const Shape& shape, DType dtype);  // valid until the next call

 private:
  Tensor memory_;
};

// A box of a tensor as a view.
Tensor box_of(const Tensor& tensor, const Box& box);

// A tensor in boxes of at most about this many elements, in row-major order: for what goes through a buffer.
std::vector<Box> cut(const Shape& shape, int64_t elements);

// Copies between tensors of one shape and dtype, both in host memory, with any strides, bit for bit.
void copy_host(const Tensor& source, const Tensor& target);

}  // namespace megatron
