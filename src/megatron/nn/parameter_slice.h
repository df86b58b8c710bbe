#pragma once

#include <vector>

#include "megatron/nn/parameter.h"

namespace megatron {

// What this rank updates of a parameter: the elements [begin, begin + value.numel()) of its shard, in
// row-major order. One whole parameter keeps its shape; a part of one is flat.
struct ParameterSlice {
  Parameter* parameter;
  int64_t begin = 0;
  Tensor value, gradient;
  // Where ranks share parameters out: its place in a bucket that is cut into parts of `part` elements, the
  // first of which is rank 0's. 0: it is not cut.
  int64_t bucket_offset = 0, part = 0;

  // What each rank that has any of the parameter updates, in order.
  struct Piece {
    int rank;
    int64_t begin, end;
  };
  std::vector<Piece> pieces() const;

  bool whole() const { return value.numel() == parameter->shard.local_shape.numel(); }
};

std::vector<ParameterSlice> whole_slices(std::span<Parameter* const> parameters);  // of the trainable ones

}  // namespace megatron
