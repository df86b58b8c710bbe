#include "megatron/nn/unit_map.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

struct UnitChunk {
  int64_t begin, count;
};

// Chunk `rank` of chunks(units, size).
UnitChunk unit_chunk(int64_t units, int rank, int size) {
  const int64_t each = units / size, longer = units % size;
  return {each * rank + std::min<int64_t>(rank, longer), each + (rank < longer ? 1 : 0)};
}

// How much more than its share the rank with the most units has.
double imbalance(int64_t units, std::span<const int> sizes) {
  double worst = 1;
  for (int size : sizes) {
    if (units < size) return 1e30;
    const int64_t most = (units + size - 1) / size;
    worst = std::max(worst, static_cast<double>(most * size) / static_cast<double>(units));
  }
  return worst;
}

}  // namespace

UnitMap UnitMap::even(int64_t units, int rank, int size) { return folded(units, rank, size, size); }

UnitMap UnitMap::folded(int64_t units, int rank, int size, int sync) {
  require(units >= 0 && 0 <= rank && rank < size && 1 <= sync && sync <= size,
          "unit map: {} units, rank {} of {}, {} positions", units, rank, size, sync);
  UnitMap map(units, rank, sync);
  const auto append = [&](int64_t begin, int64_t count) {
    for (int64_t i = 0; i < count; ++i) map.owned_.push_back(begin + i);
  };
  const int64_t own = unit_chunk(units, rank, size).count;
  if (rank < sync) {
    append(unit_chunk(units, rank, sync).begin, own);
    return map;
  }
  // What the ranks before it take of the tails; then its own part of them.
  int64_t skipped = 0, missing = own;
  for (int extra = sync; extra < rank; ++extra) skipped += unit_chunk(units, extra, size).count;
  for (int position = 0; position < sync && missing > 0; ++position) {
    const UnitChunk chunk = unit_chunk(units, position, sync);
    const int64_t kept = unit_chunk(units, position, size).count, tail = chunk.count - kept;
    const int64_t before = std::min(skipped, tail), taken = std::min(missing, tail - before);
    append(chunk.begin + kept + before, taken);
    skipped -= before;
    missing -= taken;
  }
  return map;
}

UnitMap UnitMap::sync() const {
  if (rank_ < sync_) return even(units_, rank_, sync_);
  return UnitMap(units_, rank_, sync_);
}

int64_t UnitMap::slot(int64_t unit) const {
  const auto found = std::lower_bound(owned_.begin(), owned_.end(), unit);
  return found != owned_.end() && *found == unit ? found - owned_.begin() : -1;
}

bool UnitMap::contiguous() const {
  return owned_.empty() || owned_.back() - owned_.front() + 1 == static_cast<int64_t>(owned_.size());
}

ShardSpec unit_shard(const Shape& shape, int dim, std::span<const UnitBlock> blocks, const UnitMap& map) {
  std::vector<ShardSpec::Range> ranges;
  int64_t held = 0, last = -1;
  for (const UnitBlock& block : blocks)
    for (int64_t unit : map.owned()) {
      const int64_t begin = block.offset + unit * block.extent;
      require(begin >= 0 && begin < shape[dim] && begin > last,
              "unit map: unit {} begins at {} of dimension {} of {}", unit, begin, dim, shape);
      last = begin;
      ranges.push_back({begin, std::min(begin + block.extent, shape[dim])});
      held += block.extent;
    }
  ShardSpec spec = ShardSpec::ranges(shape, dim, ranges);
  spec.local_shape[dim] = held;
  return spec;
}

std::vector<UnitBlock> unit_blocks(std::span<const int64_t> parts, int64_t units) {
  std::vector<UnitBlock> blocks;
  int64_t offset = 0;
  for (int64_t part : parts) {
    require(units > 0 && part % units == 0, "unit map: {} rows are not {} equal units", part, units);
    blocks.push_back({offset, part / units});
    offset += part;
  }
  return blocks;
}

int64_t unit_extent(int64_t rows, std::span<const int> sizes, int64_t limit) {
  int64_t best = 1;
  for (int64_t extent = 1; extent <= limit && rows % extent == 0; extent *= 2) {
    const double found = imbalance(rows / extent, sizes);
    if (found <= 1.02 || found <= imbalance(rows / best, sizes)) best = extent;
  }
  return best;
}

}  // namespace megatron
