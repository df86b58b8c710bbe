#pragma once

#include <optional>

#include "megatron/checkpoint/tensor_source.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// What a rank holds of a run's state at one iteration, in its memory or on a disk of its machine.
struct HeldState {
  std::vector<ShardDescription> shards;
  std::vector<OwnChunk> chunks;  // of each shard, on the host
  TrainingState state;           // counts where there are shards
};

// The state that the ranks of `world` hold together, whatever layout it was kept under: what a rank wants and
// does not hold itself is sent by one that does. None where nobody holds some element. All ranks call it;
// `name` is for messages. Chunks stay until the rank's stream has read them.
std::optional<TensorSource> assemble(const ProcessGroup& world, const HeldState& own,
                                     std::span<const ShardDescription> wanted, const std::string& name);

}  // namespace megatron
