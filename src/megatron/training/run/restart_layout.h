#pragma once

#include <string>
#include <vector>

#include "megatron/config/config.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron {

// Which processes train after a fault, and in which layout.
struct RestartLayout {
  std::vector<int> processes;     // that train, in the order of their ranks; empty: too few are left
  int64_t slots = 0;              // places for ranks: those of whole replicas
  std::vector<int> slot_of_rank;  // where some slots have no rank; empty: rank i has slot i
  std::vector<std::string> lost;  // slots that are done without, as --non-active-ranks takes them
  std::string note;               // why replicas were dropped that could have gone on smaller; "": none was

  // Makes the configuration, as it was given, that of this layout.
  void apply(Config& config) const;
  ParallelSizes sizes(const Config& applied) const;
};

// The layout of the processes that are `left` of as many as there were at the start, the same on all of them.
// Process p has the slots p · ranks … (p + 1) · ranks − 1. Those that a dead process leaves are taken by the
// nearest that waits in reserve: processes beyond --inprocess-active-world-size, those of idle slots, those
// of replicas that were dropped. What nobody takes is lost: its replica goes on with fewer tensor-parallel
// ranks where the configuration can do that (may_lose_ranks) and some are left of every stage and context
// slice, `min_tp` at least, with which what a rank holds fits into its memory. Otherwise the replica is
// dropped, as further ones are until whole replicas share the global batch evenly.
RestartLayout restart_layout(const Config& config, int processes, const std::vector<int>& left,
                             int64_t min_tp = 1);

// Sizes of the ranks' groups, as a line about a restart tells them.
std::string layout_name(const Config& config, const ParallelContext& parallel);

}  // namespace megatron
