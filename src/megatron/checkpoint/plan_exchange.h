#pragma once

#include "megatron/checkpoint/save_plan.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// What one rank sent and received to come to a plan, without the collectives' own headers.
struct PlanTraffic {
  int64_t sent = 0, received = 0;  // bytes
  int64_t seen = 0;                // shards of other ranks and its own that it planned for
};

// What this rank writes in a save, kept from one save to the next: where the tensors of no rank have changed,
// nothing is exchanged but that.
struct SavePlanCache {
  bool made = false;
  std::string own;  // what this rank holds
  std::vector<StoredTensor> plan;
  PlanTraffic traffic;  // of the last time that it was made
};

// Brings the cache up to date; all ranks of `world` call it, and fail alike with `failure` in front.
// `describe` gives what this rank holds.
void update_plan(const ProcessGroup& world, std::string_view failure,
                 const std::function<std::vector<ShardDescription>()>& describe, SavePlanCache& cache);

}  // namespace megatron
