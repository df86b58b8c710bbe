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

}  // namespace megatron
