#include "megatron/nn/shard_spec.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {

ShardSpec ShardSpec::whole(const Shape& shape) {
  Shape origin = shape;
  for (int i = 0; i < origin.rank(); ++i) origin[i] = 0;
  return {shape, shape, {{origin, origin, shape}}};
}

ShardSpec ShardSpec::ranges(const Shape& shape, int dim, std::span<const Range> ranges) {
  ShardSpec spec{shape, shape, {}};
  Shape origin = shape;
  for (int i = 0; i < origin.rank(); ++i) origin[i] = 0;
  int64_t local = 0;
  for (const Range& range : ranges) {
    require(0 <= range.begin && range.begin <= range.end && range.end <= shape[dim],
            "shard: [{}, {}) of dimension {} is outside {}", range.begin, range.end, dim, shape);
    const int64_t size = range.end - range.begin;
    ShardBlock* last = spec.blocks.empty() ? nullptr : &spec.blocks.back();
    if (last && last->global_offset[dim] + last->extent[dim] == range.begin) {
      last->extent[dim] += size;  // a part that follows its neighbour is one block with it
    } else {
      ShardBlock block{origin, origin, shape};
      block.global_offset[dim] = range.begin;
      block.local_offset[dim] = local;
      block.extent[dim] = size;
      spec.blocks.push_back(block);
    }
    local += size;
  }
  spec.local_shape[dim] = local;
  return spec;
}

ShardSpec ShardSpec::split(const Shape& shape, int dim, int rank, int size) {
  int64_t whole[] = {shape[dim]};
  return split_parts(shape, dim, whole, rank, size);
}

ShardSpec ShardSpec::split_parts(const Shape& shape, int dim, std::span<const int64_t> parts, int rank,
                                 int size) {
  std::vector<Range> list;
  int64_t begin = 0;
  for (int64_t part : parts) {
    require(part % size == 0, "shard: {} of dimension {} of {} cannot be split evenly over {} ranks", part,
            dim, shape, size);
    list.push_back({begin + part / size * rank, begin + part / size * (rank + 1)});
    begin += part;
  }
  require(begin == shape[dim], "shard: parts of dimension {} of {} add up to {}", dim, shape, begin);
  return ranges(shape, dim, list);
}

ShardSpec ShardSpec::split_padded(const Shape& shape, int dim, int64_t padded, int rank, int size) {
  require(padded >= shape[dim] && padded % size == 0,
          "shard: {} rows of {} padded to {} cannot be split over {} ranks", shape[dim], shape, padded, size);
  int64_t rows = padded / size;
  Range own{std::min(shape[dim], rows * rank), std::min(shape[dim], rows * (rank + 1))};
  ShardSpec spec = ranges(shape, dim, {&own, 1});
  if (own.begin == own.end) spec.blocks.clear();
  spec.local_shape[dim] = rows;
  return spec;
}

bool ShardSpec::is_whole() const {
  int64_t held = 0;
  for (const ShardBlock& block : blocks) held += block.extent.numel();
  return held == global_shape.numel();
}

}  // namespace megatron
