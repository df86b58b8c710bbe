#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron {

// How a rank meets the other replicas where these have tensor-parallel groups of different sizes. Gradients
// are summed in a layout of `sync` positions; ranks at later positions fold theirs into it and have no peers.
struct UnequalReplicas {
  std::vector<int> tp_sizes;  // by replica
  int replica = 0, sync = 1;
  bool core = true;         // this rank's position is below `sync`
  ProcessGroup fold;        // the tensor-parallel group once more, for messages beside activations
  ProcessGroup model_core;  // the cores of one replica and context slice, all stages; none for other ranks
  ProcessGroup all_cores;   // of all replicas
};

// The process groups of one rank: which it belongs to along each axis, and its place in them. Built from
// explicit lists of world ranks, so that groups need not come from a grid and may differ in size.
class ParallelContext {
 public:
  // One rank alone: every axis has size 1.
  ParallelContext();

  // Every rank of `world` must call this with the same lists. A rank is in at most one list of an axis and
  // level.
  ParallelContext(ProcessGroup world, std::vector<GroupRanks> groups);

  // All groups of a division; axes that coincide share theirs. Where slots are inactive, `world` is
  // active_world().
  static ParallelContext from_sizes(ProcessGroup world, const ParallelSizes& sizes);

  const ProcessGroup& world() const { return world_; }
  int world_rank() const { return world_.world_ranks()[static_cast<size_t>(world_.rank())]; }

  bool has(Axis axis, int level = 0) const { return groups_.count({axis, level}) > 0; }
  const ProcessGroup& group(Axis axis, int level = 0) const;  // refuses where this rank is in none
  int rank(Axis axis) const { return group(axis).rank(); }
  int size(Axis axis) const { return group(axis).size(); }

  // Replicas that batches are dealt out to, and which of them this rank is part of.
  int replicas() const { return unequal_ ? static_cast<int>(unequal_->tp_sizes.size()) : size(Axis::dp); }
  int replica() const { return unequal_ ? unequal_->replica : rank(Axis::dp); }
  const UnequalReplicas* unequal() const { return unequal_ ? &*unequal_ : nullptr; }
  // Adds up what the ranks of a replica have alike over the replicas: of all context slices (dp_cp), or of
  // one each (dp). In place, the same bits on every rank.
  void sum_over_replicas(const Tensor& tensor, Axis axis) const;

  bool first_stage() const { return rank(Axis::pp) == 0; }
  bool last_stage() const { return rank(Axis::pp) == size(Axis::pp) - 1; }

  const std::vector<GroupRanks>& lists() const { return lists_; }
  std::string overview() const;  // this rank's place along every axis that has more than one rank

 private:
  ProcessGroup world_;
  std::vector<GroupRanks> lists_;
  std::map<std::pair<Axis, int>, ProcessGroup> groups_;
  std::optional<UnequalReplicas> unequal_;
};

// The ranks of `world` that take part in a division; no group on one that idles. Every rank of `world` calls
// it.
ProcessGroup active_world(const ProcessGroup& world, const ParallelSizes& sizes);

}  // namespace megatron
