#pragma once

#include <span>
#include <vector>

#include "megatron/checkpoint/index.h"

namespace megatron {

// What a rank tells others of a tensor before a save.
struct ShardDescription {
  std::string name;
  DType dtype;
  ShardSpec shard;
};

std::vector<ShardDescription> describe(std::span<const ShardedTensor> tensors);
std::string to_text(std::span<const ShardDescription> shards);
std::vector<ShardDescription> shards_from_text(const std::string& text);

// Who writes what: every element of every tensor once, however many ranks hold it, and the bytes spread
// evenly over those that do. No rank learns what all ranks hold: the tensors are spread over the ranks by the
// hashes of their names, and each rank plans for those that fall to it.
//
// 1. A rank tells each planner what it holds of the planner's tensors: texts by planner.
std::vector<std::string> plan_requests(std::span<const ShardDescription> own, int ranks);
// 2. A planner, given the texts by rank, finds out which ranks hold the same boxes, and tells them so: texts
//    by rank. A ConfigError lists tensors on whose shape or dtype ranks disagree, and elements that no rank
//    holds. `shards` takes how many it was told of.
std::vector<std::string> plan_answers(std::span<const std::string> requests, int64_t* shards = nullptr);
// 3. Ranks that hold the same boxes line these up in one order and cut the line into parts of equal bytes,
//    one of each rank. The result is what this rank writes, with StoredChunk::file the rank; `answers` are
//    the texts by planner.
std::vector<StoredTensor> own_share(int rank, std::span<const ShardDescription> own,
                                    std::span<const std::string> answers);

// The three steps for all ranks at once, where one place knows what each of them holds.
std::vector<StoredTensor> plan_save(std::span<const std::vector<ShardDescription>> ranks);

}  // namespace megatron
