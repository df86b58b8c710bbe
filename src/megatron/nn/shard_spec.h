#pragma once

#include <span>
#include <vector>

#include "megatron/base/shape.h"

namespace megatron {

// A box of a tensor that lies at one place globally and at another in this rank's memory.
struct ShardBlock {
  Shape global_offset, local_offset, extent;
};

// Which part of a global tensor a rank holds: one form for sharding, checkpoints, Hugging Face files and
// resharding.
struct ShardSpec {
  Shape global_shape, local_shape;
  std::vector<ShardBlock> blocks;

  static ShardSpec whole(const Shape& shape);
  // An even, contiguous split of one dimension.
  static ShardSpec split(const Shape& shape, int dim, int rank, int size);
  // The dimension is a sequence of parts, each split evenly on its own (gate and up of a fused fc1).
  static ShardSpec split_parts(const Shape& shape, int dim, std::span<const int64_t> parts, int rank,
                               int size);
  // The given half-open ranges of one dimension, one after the other.
  struct Range {
    int64_t begin, end;
  };
  static ShardSpec ranges(const Shape& shape, int dim, std::span<const Range> ranges);

  // Rows of `dim` up to `padded` are split evenly; those beyond the shape's own are padding: they exist in
  // memory only.
  static ShardSpec split_padded(const Shape& shape, int dim, int64_t padded, int rank, int size);

  bool is_whole() const;  // every element of the global tensor is here
};

}  // namespace megatron
