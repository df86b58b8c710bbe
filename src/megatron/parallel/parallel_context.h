#pragma once

#include <map>
#include <string>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron {

// The process groups of one rank: which it belongs to along each axis, and its place in them. Built from
// explicit lists of world ranks, so that groups need not come from a grid and may differ in size.
class ParallelContext {
 public:
  // One rank alone: every axis has size 1.
  ParallelContext();

  // Every rank of `world` must call this with the same lists. A rank is in at most one list of an axis and
  // level.
  ParallelContext(ProcessGroup world, std::vector<GroupRanks> groups);

  // All groups of a division; axes that coincide share theirs.
  static ParallelContext from_sizes(ProcessGroup world, const ParallelSizes& sizes);

  const ProcessGroup& world() const { return world_; }
  int world_rank() const { return world_.world_ranks()[static_cast<size_t>(world_.rank())]; }

  bool has(Axis axis, int level = 0) const { return groups_.count({axis, level}) > 0; }
  const ProcessGroup& group(Axis axis, int level = 0) const;  // refuses where this rank is in none
  int rank(Axis axis) const { return group(axis).rank(); }
  int size(Axis axis) const { return group(axis).size(); }

  bool first_stage() const { return rank(Axis::pp) == 0; }
  bool last_stage() const { return rank(Axis::pp) == size(Axis::pp) - 1; }

  const std::vector<GroupRanks>& lists() const { return lists_; }
  std::string overview() const;  // this rank's place along every axis that has more than one rank

 private:
  ProcessGroup world_;
  std::vector<GroupRanks> lists_;
  std::map<std::pair<Axis, int>, ProcessGroup> groups_;
};

}  // namespace megatron
