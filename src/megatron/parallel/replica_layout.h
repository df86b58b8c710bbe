#pragma once

#include <string>
#include <vector>

#include "megatron/parallel/parallel_groups.h"

namespace megatron {

// Which ranks take part where slots of tensor-parallel groups are lost or idle (nonuniform tensor
// parallelism), and at which position. Replicas may have groups of different sizes; all stages and context
// slices of one replica have as many ranks as its smallest.
class ReplicaLayout {
 public:
  explicit ReplicaLayout(const ParallelSizes& sizes);

  int replicas() const { return static_cast<int>(tp_sizes_.size()); }
  const std::vector<int>& tp_sizes() const { return tp_sizes_; }  // by replica
  int sync() const { return sync_; }  // positions at which every replica has a rank: the smallest size
  // World ranks by position. Position j is slot j where that is active; the holes are filled by the remaining
  // active slots in order, so that most data-parallel peers stay on one network rail.
  const std::vector<int>& ranks(int replica, int context, int stage) const;
  const std::vector<int>& active() const { return active_; }  // ascending
  const std::vector<int>& idle() const { return idle_; }      // ascending
  // The replica of an active rank, -1 for an idle one.
  int replica_of(int rank) const;

  // A line a replica: its ranks by position, those without peers behind a bar, and who idles.
  std::string picture() const;

  // Every group of the layout in the sequence in which all active ranks must create them. Ranks at positions
  // from sync() on have no peers in other replicas: their data-parallel groups hold them alone.
  std::vector<GroupRanks> groups(const ParallelSizes& sizes) const;

 private:
  std::vector<int> tp_sizes_, active_, idle_;
  int sync_ = 1, context_ = 1, stages_ = 1;
  std::vector<std::vector<int>> ranks_;  // [(replica · context + slice) · stages + stage]
};

// What is wrong with the inactive slots of a division, each with advice.
std::vector<std::string> inactive_problems(const ParallelSizes& sizes);

}  // namespace megatron
