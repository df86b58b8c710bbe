#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/nn/shard_plan.h"
#include "megatron/optimizer/packed_state.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// What one rank has of a named global tensor. A rank may have several pieces of one name.
struct ShardedTensor {
  std::string name;
  ShardSpec shard;
  Tensor tensor;  // of shard.local_shape, on any device; undefined where it is packed
  std::optional<PackedValues> packed = {};  // to be saved as fp32, of shard.local_shape

  DType dtype() const { return packed ? DType::F32 : tensor.dtype(); }
};

// A tensor that a load fills.
struct LoadPart {
  ShardedTensor target;                // its tensor is undefined where `begin` gives it
  DType dtype;                         // of that
  std::function<Tensor()> begin = {};  // called before the first of its values comes
  std::function<void()> end = {};      // called behind the last one, before the next part begins
};

// The elements from `begin` on, in row-major order, of a rank's shard of `name`, as boxes: how optimizer
// state that is split evenly over flat buffers meets tensors. `flat` is one-dimensional; the results are
// views of it.
std::vector<ShardedTensor> flat_range(const std::string& name, const ShardSpec& shard, const Tensor& flat,
                                      int64_t begin);
std::vector<ShardedTensor> flat_range(const std::string& name, const ShardSpec& shard,
                                      const PackedValues& flat, int64_t begin);

}  // namespace megatron
