#pragma once

#include <vector>

#include "megatron/comm/process_group.h"

namespace megatron {

class ParallelContext;

// How the experts of a layer are spread: whole experts over `group`, the matrices of each expert over
// `tensor`; and the ranks that decide together where tokens go.
struct ExpertParallel {
  ProcessGroup group = ProcessGroup::self("ep");
  ProcessGroup tensor = ProcessGroup::self("etp");
  ProcessGroup all = ProcessGroup::self("etp-ep");        // everyone with a part of one set of experts
  ProcessGroup microbatch = ProcessGroup::self("tp-cp");  // those who share the tokens of a micro-batch
  ProcessGroup batch = ProcessGroup::self("tp-dp-cp");    // … of a step
  std::vector<int> replica_sizes = {};  // of `tensor` in all replicas, where they differ; else empty
  std::vector<int> places = {0};  // [expert rank · tensor size + tensor rank]: that one's rank in `all`

  // The groups of a rank.
  static ExpertParallel of(const ParallelContext& parallel);

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
};

}  // namespace megatron
