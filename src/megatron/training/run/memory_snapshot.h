#pragma once

#include <array>
#include <optional>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/tensor_source.h"
#include "megatron/training/run/held_state.h"
#include "megatron/training/run/replica_exchange.h"

namespace megatron {

// A rank's state at the last two step boundaries, in host memory that outlives the rank's generation: ranks
// are at most one boundary apart when a fault comes, so that one of the two is known to all.
class MemorySnapshot {
 public:
  // Copies what a checkpoint would hold. On a GPU the copies run beside the next step, up to its update.
  // `order`: see Snapshot.
  void keep(RankContext& ctx, std::span<const ShardedTensor> tensors, const TrainingState& state,
            std::span<const std::vector<Tensor>> order = {});
  // Has others keep what this rank kept last, and keeps what they send: what is lost with a process is there
  // then, where no other rank trains on the same state. Waits for the copies. All ranks call it.
  void replicate(const ProcessGroup& world, const ReplicaPlaces& places);
  bool holds_back() const;
  // To be called before the tensors change, or those of a group do.
  void before_change(RankContext& ctx, std::optional<size_t> group = {});

  int64_t newest() const;  // iteration; -1: there is nothing
  // Drops copies of other iterations than the one that the run goes on from: steps that are computed again
  // may have other roundings, and one state must not be put together from both.
  void forget_all_but(int64_t iteration);
  void forget() { forget_all_but(-1); }

  // The newest state of which the ranks of `world` hold every element that they need now, whatever layout it
  // was kept under: what a rank does not have itself is sent by one that does. None where there is no such
  // state. All ranks call it.
  std::optional<TensorSource> restore(const ProcessGroup& world, std::span<const ShardDescription> wanted);

 private:
  struct Copy {
    int64_t iteration = -1;
    TrainingState state;
    std::vector<ShardDescription> shards;
    Snapshot memory;
    std::vector<HeldState> replicas;  // of other ranks
  };

  Copy* find(int64_t iteration);
  std::optional<TensorSource> restore(const ProcessGroup& world, int64_t iteration,
                                      std::span<const ShardDescription> wanted);

  std::array<Copy, 2> copies_;
  size_t next_ = 0;
};

}  // namespace megatron
