#include "megatron/parallel/tensor/tensor_parallel.h"

#include <algorithm>

namespace megatron {

int TensorParallel::sync() const {
  return unequal() ? *std::min_element(replica_sizes.begin(), replica_sizes.end()) : size();
}

UnitMap TensorParallel::units(std::string_view what, int64_t count) const {
  if (!unequal()) {
    require(count % size() == 0, "{}: {} units cannot be split evenly over {} ranks", what, count, size());
    return UnitMap::even(count, rank(), size());
  }
  const int largest = *std::max_element(replica_sizes.begin(), replica_sizes.end());
  require(count >= largest, "{}: {} units are too few for {} tensor-parallel ranks; use a smaller --tp-base",
          what, count, largest);
  return UnitMap::folded(count, rank(), size(), sync());
}

SplitShard split_by_rank(const TensorParallel& tp, std::function<ShardSpec(int rank)> held,
                         std::function<ShardSpec(int rank)> owned) {
  ShardSpec own = held(tp.rank());
  return {std::move(own), {std::move(held), std::move(owned)}};
}

SplitShard TensorParallel::split(std::string_view what, const Shape& shape, int dim, int64_t units,
                                 std::span<const int64_t> parts) const {
  const int64_t whole[] = {shape[dim]};
  if (parts.empty()) parts = whole;
  if (!unequal()) return {ShardSpec::split_parts(shape, dim, parts, rank(), size())};
  if (units == 0) units = parts[0] / unit_extent(parts[0], replica_sizes);
  this->units(what, units);  // checks that there are enough
  const auto of = [shape, dim, blocks = unit_blocks(parts, units)](const UnitMap& map) {
    return unit_shard(shape, dim, blocks, map);
  };
  return split_by_rank(
      *this,
      [of, units, size = size(), sync = sync()](int rank) {
        return of(UnitMap::folded(units, rank, size, sync));
      },
      [of, units, sync = sync()](int rank) { return of(UnitMap::even(units, rank, sync)); });
}

int64_t TensorParallel::vocabulary_unit(int64_t vocabulary) const {
  // Rounded up to the unit, the vocabulary has as many of them as one that the unit divides.
  for (int64_t extent = 128; extent > 1; extent /= 2) {
    const int64_t padded = (vocabulary + extent - 1) / extent * extent;
    if (unit_extent(padded, replica_sizes, extent) == extent) return extent;
  }
  return 1;
}

SplitShard TensorParallel::split_vocabulary(std::string_view what, const Shape& shape, int64_t padded) const {
  if (!unequal()) return {ShardSpec::split_padded(shape, 0, padded, rank(), size())};
  const int64_t extent = vocabulary_unit(shape[0]), count = (shape[0] + extent - 1) / extent;
  units(what, count);
  const auto of = [shape, extent](const UnitMap& map) {
    const UnitBlock block{0, extent};
    return unit_shard(shape, 0, {&block, 1}, map);
  };
  return split_by_rank(
      *this,
      [of, count, size = size(), sync = sync()](int rank) {
        return of(UnitMap::folded(count, rank, size, sync));
      },
      [of, count, sync = sync()](int rank) { return of(UnitMap::even(count, rank, sync)); });
}

}  // namespace megatron
