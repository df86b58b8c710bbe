#pragma once

#include <functional>
#include <optional>

#include "megatron/autograd/rank_context.h"
#include "megatron/checkpoint/save_plan.h"

namespace megatron {

// Writes this rank's share of the plan into the directory; none where it has no share.
std::optional<StoredFile> write_shards(RankContext& ctx, const std::string& directory, int rank,
                                       std::span<const ShardedTensor> tensors,
                                       std::span<const StoredTensor> plan);

// The index of what the ranks wrote: files[r] is what write_shards gave rank r. Written last.
CheckpointIndex make_index(TrainingState state, std::vector<StoredTensor> plan,
                           std::span<const std::optional<StoredFile>> files);
// Beside it its checksum, as `xxh64sum --check` reads it.
void write_index(const std::string& directory, const CheckpointIndex& index);

}  // namespace megatron
