#pragma once

#include <string>
#include <vector>

#include "megatron/nn/shard_plan.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// What one rank has of a named global tensor. A rank may have several pieces of one name.
struct ShardedTensor {
  std::string name;
  ShardSpec shard;
  Tensor tensor;  // of shard.local_shape, on any device
};

// The elements from `begin` on, in row-major order, of a rank's shard of `name`, as boxes: how optimizer
// state that is split evenly over flat buffers meets tensors. `flat` is one-dimensional; the results are
// views of it.
std::vector<ShardedTensor> flat_range(const std::string& name, const ShardSpec& shard, const Tensor& flat,
                                      int64_t begin);

// A box of a tensor as a view.
Tensor box_of(const Tensor& tensor, const Shape& offset, const Shape& extent);

// The tensor in views of at most about this many elements, in row-major order: for what goes through a
// buffer.
std::vector<Tensor> cut(const Tensor& tensor, int64_t elements);

// Copies between tensors of one shape and dtype, both in host memory, with any strides, bit for bit.
void copy_host(const Tensor& source, const Tensor& target);

}  // namespace megatron
