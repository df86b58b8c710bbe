#include "megatron/parallel/parallel_context.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "megatron/base/error.h"
#include "megatron/parallel/replica_layout.h"

namespace megatron {
namespace {

using GroupKey = std::pair<Axis, int>;

std::string group_name(const GroupKey& key) {
  return key.second == 0 ? std::string(axis_name(key.first))
                         : fmt::format("{}.{}", axis_name(key.first), key.second);
}

void check_lists(const GroupKey& key, const std::vector<const GroupRanks*>& lists,
                 const std::vector<int>& world) {
  std::vector<int> seen;
  for (const GroupRanks* list : lists) {
    require(!list->ranks.empty(), "parallel context: {} has an empty group", group_name(key));
    seen.insert(seen.end(), list->ranks.begin(), list->ranks.end());
  }
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  require(twice == seen.end(), "parallel context: rank {} is in two groups of {}",
          twice == seen.end() ? 0 : *twice, group_name(key));
  for (int rank : seen)
    require(std::find(world.begin(), world.end(), rank) != world.end(),
            "parallel context: {} names rank {}, which is not in the world of {} ranks", group_name(key),
            rank, world.size());
}

// Where a rank stands: which list, and at which place in it. Color -1: in none.
std::pair<int, int> place_in(const std::vector<const GroupRanks*>& lists, int world_rank) {
  for (size_t i = 0; i < lists.size(); ++i) {
    const std::vector<int>& ranks = lists[i]->ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
    if (found != ranks.end()) return {static_cast<int>(i), static_cast<int>(found - ranks.begin())};
  }
  return {-1, 0};
}

UnequalReplicas meet_replicas(const ParallelContext& parallel, const ReplicaLayout& layout) {
  const ProcessGroup &tp = parallel.group(Axis::tp), &mp = parallel.group(Axis::mp);
  UnequalReplicas unequal{.tp_sizes = layout.tp_sizes(),
                          .replica = layout.replica_of(parallel.world_rank()),
                          .sync = layout.sync(),
                          .core = tp.rank() < layout.sync(),
                          .fold = tp.split_by([](int) { return 0; }, "fold"),
                          .model_core = {},
                          .all_cores = {}};
  std::set<int> cores;
  for (const GroupRanks& list : parallel.lists())
    if (list.axis == Axis::tp) cores.insert(list.ranks.begin(), list.ranks.begin() + layout.sync());
  const auto cores_of = [&](const ProcessGroup& group, const char* name) {
    return group.split_by(
        [&](int rank) { return cores.contains(group.world_ranks()[static_cast<size_t>(rank)]) ? 0 : -1; },
        name);
  };
  unequal.model_core = cores_of(mp, "model-core");
  unequal.all_cores = cores_of(parallel.world(), "cores");
  return unequal;
}

}  // namespace

ParallelContext::ParallelContext() : ParallelContext(from_sizes(ProcessGroup::self("world"), {})) {}

ParallelContext::ParallelContext(ProcessGroup world, std::vector<GroupRanks> groups)
    : world_(std::move(world)), lists_(std::move(groups)) {
  std::map<GroupKey, std::vector<const GroupRanks*>> by_key;
  for (const GroupRanks& list : lists_) by_key[{list.axis, list.level}].push_back(&list);
  for (const auto& [key, lists] : by_key) check_lists(key, lists, world_.world_ranks());
  for (const auto& [key, lists] : by_key) {
    const auto [color, place] = place_in(lists, world_rank());
    const bool alone = std::all_of(lists.begin(), lists.end(),
                                   [](const GroupRanks* list) { return list->ranks.size() == 1; });
    if (!alone) {
      if (ProcessGroup group = world_.split(color, place, group_name(key)))
        groups_.emplace(key, std::move(group));
    } else if (color >= 0) {
      groups_.emplace(key, world_.alone(group_name(key)));
    }
  }
}

ParallelContext ParallelContext::from_sizes(ProcessGroup world, const ParallelSizes& sizes) {
  const std::vector<int>& ranks = world.world_ranks();
  const std::vector<GroupRanks> lists = parallel_groups(sizes);
  std::optional<ReplicaLayout> unequal;
  if (!sizes.inactive.empty()) unequal.emplace(sizes);
  const int expected = unequal ? static_cast<int>(unequal->active().size()) : sizes.world;
  if (static_cast<int>(ranks.size()) != expected)
    throw ConfigError(fmt::format("parallel context: the layout is for {} ranks, but there are {}", expected,
                                  ranks.size()));
  ParallelContext context(world, lists);
  for (Axis axis : all_axes()) {
    const Axis shared = alias(axis, sizes);
    if (shared != axis && context.has(shared))
      context.groups_.emplace(GroupKey{axis, 0}, context.group(shared));
  }
  if (unequal) context.unequal_ = meet_replicas(context, *unequal);
  return context;
}

ProcessGroup active_world(const ProcessGroup& world, const ParallelSizes& sizes) {
  if (sizes.inactive.empty()) return world;
  const ReplicaLayout layout(sizes);
  return world.split_by(
      [&](int rank) {
        const int known = world.world_ranks()[static_cast<size_t>(rank)];
        return std::binary_search(layout.idle().begin(), layout.idle().end(), known) ? -1 : 0;
      },
      "active");
}

// Ranks without peers in other replicas get the sum from the first rank of their tensor-parallel group.
void ParallelContext::sum_over_replicas(const Tensor& tensor, Axis axis) const {
  if (!unequal_) return group(axis).all_reduce(tensor).wait();
  if (rank(Axis::tp) == 0) group(axis).all_reduce(tensor).wait();
  group(Axis::tp).broadcast(tensor, 0).wait();
}

const ProcessGroup& ParallelContext::group(Axis axis, int level) const {
  const auto found = groups_.find({axis, level});
  require(found != groups_.end(), "parallel context: rank {} is in no group of {}", world_rank(),
          group_name({axis, level}));
  return found->second;
}

std::string ParallelContext::overview() const {
  std::string text = fmt::format("rank {} of {}\n", world_rank(), world_.size());
  for (const auto& [key, group] : groups_)
    if (group.size() > 1)
      text += fmt::format("  {:<15} {} of {}  [{}]\n", group_name(key), group.rank(), group.size(),
                          fmt::join(group.world_ranks(), " "));
  return text;
}

}  // namespace megatron
