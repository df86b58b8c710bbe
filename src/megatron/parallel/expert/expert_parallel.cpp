#include "megatron/parallel/expert/expert_parallel.h"

#include <algorithm>

#include "megatron/parallel/parallel_context.h"

namespace megatron {
namespace {

// The place of a world rank in its group of an axis.
int place_of(const ParallelContext& parallel, Axis axis, int world_rank) {
  for (const GroupRanks& list : parallel.lists()) {
    if (list.axis != axis) continue;
    auto found = std::find(list.ranks.begin(), list.ranks.end(), world_rank);
    if (found != list.ranks.end()) return static_cast<int>(found - list.ranks.begin());
  }
  return 0;  // a rank alone
}

}  // namespace

ExpertParallel ExpertParallel::of(const ParallelContext& parallel) {
  ExpertParallel expert{.group = parallel.group(Axis::ep),
                        .tensor = parallel.group(Axis::etp),
                        .all = parallel.group(Axis::etp_ep),
                        .microbatch = parallel.group(Axis::tp_cp),
                        .batch = parallel.group(Axis::tp_dp_cp)};
  if (const UnequalReplicas* unequal = parallel.unequal()) expert.replica_sizes = unequal->tp_sizes;
  expert.places.assign(static_cast<size_t>(expert.all.size()), 0);
  for (int i = 0; i < expert.all.size(); ++i) {
    int world_rank = expert.all.world_ranks()[static_cast<size_t>(i)];
    int at = place_of(parallel, Axis::ep, world_rank) * expert.tensor.size() +
             place_of(parallel, Axis::etp, world_rank);
    expert.places[static_cast<size_t>(at)] = i;
  }
  return expert;
}

}  // namespace megatron
