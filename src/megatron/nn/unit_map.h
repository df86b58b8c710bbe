#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "megatron/nn/shard_spec.h"

namespace megatron {

// Who owns which units of a dimension: slices that are never cut, such as query groups, columns of an MLP or
// rows of the vocabulary. Where replicas of a model have tensor-parallel groups of different sizes, gradients
// meet in a layout of `sync` positions, as many as the smallest group has: unit u is synced at the position
// whose chunk holds it.
class UnitMap {
 public:
  // Contiguous chunks, whose sizes differ by one at most, the longer ones first.
  static UnitMap even(int64_t units, int rank, int size);
  // The first `sync` ranks keep the head of their chunk of even(units, rank, sync); the others share out the
  // tails in order, so that every rank owns as many as in even(units, rank, size).
  static UnitMap folded(int64_t units, int rank, int size, int sync);

  UnitMap sync() const;                                      // this position's chunk; empty beyond them
  std::span<const int64_t> owned() const { return owned_; }  // ascending
  int64_t slot(int64_t unit) const;                          // its place among the owned; -1: elsewhere
  int64_t units() const { return units_; }
  bool contiguous() const;  // the owned are one run, or none

 private:
  UnitMap(int64_t units, int rank, int sync) : units_(units), rank_(rank), sync_(sync) {}

  int64_t units_;
  int rank_, sync_;
  std::vector<int64_t> owned_;
};

// Where the rows of units lie: those of unit u are [offset + u · extent, offset + (u + 1) · extent).
struct UnitBlock {
  int64_t offset, extent;
};

// What a rank holds of a tensor: block by block, its units one after the other. Rows beyond the shape are
// padding: they exist in memory only.
ShardSpec unit_shard(const Shape& shape, int dim, std::span<const UnitBlock> blocks, const UnitMap& map);

// The blocks of a dimension that is a sequence of parts, each cut into as many units.
std::vector<UnitBlock> unit_blocks(std::span<const int64_t> parts, int64_t units);

// Rows of a unit where any number will do: the largest power of two up to `limit` that divides `rows` and
// leaves no rank of these group sizes with more than 1.02 of its share; else the one that comes nearest.
int64_t unit_extent(int64_t rows, std::span<const int> sizes, int64_t limit = 128);

// Who holds a parameter within a tensor-parallel group, and who owns its gradient where replicas meet.
// Several ranks may hold the same rows; every row has one owner.
struct HolderMap {
  std::function<ShardSpec(int rank)> held, owned;  // empty: all replicas are alike

  explicit operator bool() const { return static_cast<bool>(held); }
};

// A rank's part of a tensor with the parts of the others.
struct SplitShard {
  ShardSpec shard;
  HolderMap holders = {};
};

}  // namespace megatron
