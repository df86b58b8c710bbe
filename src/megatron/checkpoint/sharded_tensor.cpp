#include "megatron/checkpoint/sharded_tensor.h"

namespace megatron {

namespace {

// Splits [begin, end) of the row-major order of `shape` into boxes, in order. `box` holds what is decided for
// the dimensions before `dim`.
void split_flat(const Shape& shape, int dim, int64_t begin, int64_t end, Box box, std::vector<Box>& boxes) {
  if (begin == end) return;
  if (dim == shape.rank()) return boxes.push_back(box);
  int64_t inner = 1;
  for (int i = dim + 1; i < shape.rank(); ++i) inner *= shape[i];
  const auto row = [&](int64_t index, int64_t from, int64_t to) {
    Box part = box;
    part.offset[dim] = index;
    part.extent[dim] = 1;
    split_flat(shape, dim + 1, from, to, part, boxes);
  };
  int64_t first = begin / inner, last = end / inner;
  if (first == last) return row(first, begin % inner, end % inner);  // within one row
  if (begin % inner != 0) {
    row(first, begin % inner, inner);
    ++first;
  }
  if (first < last) {
    Box rows = box;
    rows.offset[dim] = first;
    rows.extent[dim] = last - first;
    boxes.push_back(rows);
  }
  if (end % inner != 0) row(last, 0, end % inner);
}

}  // namespace

std::vector<ShardedTensor> flat_range(const std::string& name, const ShardSpec& shard, const Tensor& flat,
                                      int64_t begin) {
  const Shape& shape = shard.local_shape;
  const int64_t end = begin + flat.numel();
  require(flat.rank() == 1 && begin >= 0 && end <= shape.numel(), "{}: [{}, {}) is no range of its shard {}",
          name, begin, end, shape);
  const Box whole = whole_box(shape);
  std::vector<Box> boxes;
  split_flat(shape, 0, begin, end, whole, boxes);

  std::vector<ShardedTensor> pieces;
  int64_t at = 0;
  for (const Box& box : boxes) {
    ShardedTensor piece{name, {shard.global_shape, box.extent, {}}, {}};
    for (const ShardBlock& block : shard.blocks)
      if (std::optional<Box> both = intersect(box, {block.local_offset, block.extent}))
        piece.shard.blocks.push_back({shifted(both->offset, block.local_offset, block.global_offset),
                                      shifted(both->offset, box.offset, whole.offset), both->extent});
    piece.tensor = flat.slice(0, at, at + box.volume()).view(box.extent);
    at += box.volume();
    if (!piece.shard.blocks.empty()) pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<ShardedTensor> flat_range(const std::string& name, const ShardSpec& shard,
                                      const PackedValues& flat, int64_t begin) {
  std::vector<ShardedTensor> pieces = flat_range(name, shard, flat.parts.front(), begin);
  for (ShardedTensor& piece : pieces) piece.packed = flat.with_parts({std::move(piece.tensor)});
  for (size_t part = 1; part < flat.parts.size(); ++part) {
    const std::vector<ShardedTensor> views = flat_range(name, shard, flat.parts[part], begin);
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i].packed->parts.push_back(views[i].tensor);
  }
  for (ShardedTensor& piece : pieces) piece.tensor = {};
  return pieces;
}

}  // namespace megatron
