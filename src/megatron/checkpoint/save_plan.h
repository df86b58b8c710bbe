#pragma once

#include <span>
#include <vector>

#include "megatron/checkpoint/index.h"

namespace megatron {

// What a rank tells the others of a tensor before a save.
struct ShardDescription {
  std::string name;
  DType dtype;
  ShardSpec shard;
};

std::vector<ShardDescription> describe(std::span<const ShardedTensor> tensors);
std::string to_text(std::span<const ShardDescription> shards);
std::vector<ShardDescription> shards_from_text(const std::string& text);

// Who writes what: every element of every tensor once, however many ranks hold it, and the bytes spread
// evenly over those that do. Piece.file is the rank. Every rank comes to the same plan by itself. A
// ConfigError lists tensors on whose shape or dtype ranks disagree, and elements that no rank holds.
std::vector<StoredTensor> plan_save(std::span<const std::vector<ShardDescription>> ranks);

}  // namespace megatron
