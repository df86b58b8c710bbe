#pragma once

#include "megatron/nn/parameter.h"

namespace megatron {

// What this rank updates of a parameter: the elements [begin, begin + value.numel()) of its shard, in
// row-major order. One whole parameter keeps its shape; a part of one is flat.
struct ParameterSlice {
  Parameter* parameter;
  int64_t begin = 0;
  Tensor value, gradient;

  bool whole() const { return value.numel() == parameter->shard.local_shape.numel(); }
};

std::vector<ParameterSlice> whole_slices(std::span<Parameter* const> parameters);  // of the trainable ones

}  // namespace megatron
