#include "megatron/parallel/replica_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "megatron/base/error.h"

namespace megatron {
namespace {

bool concerns(const InactiveSlots& entry, int replica, int context, int stage) {
  return entry.dp == replica && (entry.cp < 0 || entry.cp == context) && (entry.pp < 0 || entry.pp == stage);
}

std::set<int> active_slots(const ParallelSizes& sizes, int replica, int context, int stage) {
  std::set<int> active;
  for (int slot = 0; slot < sizes.tp; ++slot) active.insert(slot);
  for (const InactiveSlots& entry : sizes.inactive)
    if (concerns(entry, replica, context, stage))
      for (int slot : entry.slots) active.erase(slot);
  return active;
}

std::vector<int> slot_order(std::set<int> active, int count) {
  std::vector<int> order(static_cast<size_t>(count), -1);
  for (int slot = 0; slot < count; ++slot)
    if (active.erase(slot) > 0) order[static_cast<size_t>(slot)] = slot;
  for (int& place : order) {
    if (place >= 0) continue;
    place = *active.begin();
    active.erase(active.begin());
  }
  return order;
}

}  // namespace

ReplicaLayout::ReplicaLayout(const ParallelSizes& sizes) : context_(sizes.cp), stages_(sizes.pp) {
  const RankGrid grid = dense_grid(sizes);
  // The world rank of each slot that has one.
  std::vector<std::pair<int, int>> slots_of_ranks;
  for (int i = 0; i < (sizes.slot_of_rank.empty() ? sizes.world : std::ssize(sizes.slot_of_rank)); ++i)
    slots_of_ranks.emplace_back(
        sizes.rank_offset + i,
        sizes.rank_offset + (sizes.slot_of_rank.empty() ? i : sizes.slot_of_rank[static_cast<size_t>(i)]));
  std::map<std::array<int, 4>, int> at;
  for (const auto& [rank, slot] : slots_of_ranks)
    at[{grid.coordinate(slot, "dp"), grid.coordinate(slot, "cp"), grid.coordinate(slot, "pp"),
        grid.coordinate(slot, "tp")}] = rank;
  std::set<int> taking_part;
  for (int replica = 0; replica < sizes.dp(); ++replica) {
    size_t smallest = static_cast<size_t>(sizes.tp);
    for (int context = 0; context < context_; ++context)
      for (int stage = 0; stage < stages_; ++stage)
        smallest = std::min(smallest, active_slots(sizes, replica, context, stage).size());
    require(smallest > 0, "nonuniform tensor parallelism: no rank of replica {} is left", replica);
    tp_sizes_.push_back(static_cast<int>(smallest));
    for (int context = 0; context < context_; ++context)
      for (int stage = 0; stage < stages_; ++stage) {
        std::vector<int>& ranks = ranks_.emplace_back();
        for (int slot : slot_order(active_slots(sizes, replica, context, stage), tp_sizes_.back())) {
          const auto found = at.find({replica, context, stage, slot});
          require(
              found != at.end(),
              "nonuniform tensor parallelism: slot {} of replica {}, context slice {}, stage {} has no rank",
              slot, replica, context, stage);
          ranks.push_back(found->second);
        }
        taking_part.insert(ranks.begin(), ranks.end());
      }
  }
  sync_ = *std::min_element(tp_sizes_.begin(), tp_sizes_.end());
  for (const auto& [rank, slot] : slots_of_ranks)
    (taking_part.contains(rank) ? active_ : idle_).push_back(rank);
}

const std::vector<int>& ReplicaLayout::ranks(int replica, int context, int stage) const {
  return ranks_.at(static_cast<size_t>((replica * context_ + context) * stages_ + stage));
}

int ReplicaLayout::replica_of(int rank) const {
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (std::find(ranks_[i].begin(), ranks_[i].end(), rank) != ranks_[i].end())
      return static_cast<int>(i) / (context_ * stages_);
  return -1;
}

std::string ReplicaLayout::picture() const {
  std::string text;
  for (int r = 0; r < replicas(); ++r)
    for (int c = 0; c < context_; ++c)
      for (int p = 0; p < stages_; ++p) {
        text += fmt::format("replica {}", r);
        if (context_ > 1) text += fmt::format(", context slice {}", c);
        if (stages_ > 1) text += fmt::format(", stage {}", p);
        text += fmt::format(": tp {:<3} ranks", tp_sizes_[static_cast<size_t>(r)]);
        const std::vector<int>& own = ranks(r, c, p);
        for (size_t i = 0; i < own.size(); ++i)
          text += fmt::format("{} {}", i == static_cast<size_t>(sync_) ? " |" : "", own[i]);
        text += "\n";
      }
  if (!idle_.empty()) text += fmt::format("idle: {}\n", fmt::join(idle_, " "));
  return text;
}

std::vector<GroupRanks> ReplicaLayout::groups(const ParallelSizes& sizes) const {
  std::vector<GroupRanks> groups;
  const auto add = [&](Axis axis, std::vector<int> ranks) {
    if (!ranks.empty()) groups.push_back({axis, 0, std::move(ranks)});
  };
  // Ranks at a position of some replicas, context slices and stages; -1: all.
  const auto gather = [&](int replica, int context, int stage, int position) {
    std::vector<int> list;
    for (int p = 0; p < stages_; ++p)
      for (int r = 0; r < replicas(); ++r)
        for (int c = 0; c < context_; ++c) {
          if ((replica >= 0 && r != replica) || (context >= 0 && c != context) || (stage >= 0 && p != stage))
            continue;
          const std::vector<int>& own = ranks(r, c, p);
          if (position < 0)
            list.insert(list.end(), own.begin(), own.end());
          else if (position < static_cast<int>(own.size()))
            list.push_back(own[static_cast<size_t>(position)]);
        }
    return list;
  };
  const auto alone = [&](Axis axis, int stage) {
    for (int r = 0; r < replicas(); ++r)
      for (int c = 0; c < context_; ++c)
        for (int j = sync_; j < tp_sizes_[static_cast<size_t>(r)]; ++j) add(axis, gather(r, c, stage, j));
  };
  for (int p = 0; p < stages_; ++p) {
    for (Axis axis : {Axis::dp_cp, Axis::edp}) {
      for (int j = 0; j < sync_; ++j) add(axis, gather(-1, -1, p, j));
      alone(axis, p);
    }
    for (int c = 0; c < context_; ++c)
      for (int j = 0; j < sync_; ++j) add(Axis::dp, gather(-1, c, p, j));
    alone(Axis::dp, p);
    add(Axis::tp_dp_cp, gather(-1, -1, p, -1));
    for (int c = 0; c < context_; ++c) add(Axis::tp_dp, gather(-1, c, p, -1));
  }
  for (int r = 0; r < replicas(); ++r) {
    const int size = tp_sizes_[static_cast<size_t>(r)];
    for (int p = 0; p < stages_; ++p) {
      for (int j = 0; j < size; ++j) add(Axis::cp, gather(r, -1, p, j));
      add(Axis::tp_cp, gather(r, -1, p, -1));
      for (int c = 0; c < context_; ++c) {
        for (Axis axis : {Axis::tp, Axis::etp, Axis::etp_ep}) add(axis, ranks(r, c, p));
        for (int rank : ranks(r, c, p)) add(Axis::ep, {rank});
      }
    }
    for (int c = 0; c < context_; ++c) {
      for (Axis axis : {Axis::mp, Axis::etp_ep_pp}) add(axis, gather(r, c, -1, -1));
      for (int j = 0; j < size; ++j) {
        const std::vector<int> pipeline = gather(r, c, -1, j);
        add(Axis::pp, pipeline);
        add(Axis::embd, embedding_ranks(pipeline, sizes.embedding_stages));
        add(Axis::pos_embd, position_embedding_ranks(pipeline));
      }
    }
  }
  add(Axis::dist_opt, active_);
  return groups;
}

std::vector<std::string> inactive_problems(const ParallelSizes& s) {
  std::vector<std::string> problems;
  if (s.inactive.empty()) return problems;
  const auto outside = [&](const char* what, int value, int size) {
    if (value >= size || value < -1)
      problems.push_back(fmt::format("inactive slots name {} {}, but there are {}: count from 0 to {}", what,
                                     value, size, size - 1));
  };
  for (const InactiveSlots& entry : s.inactive) {
    outside("replica", entry.dp < 0 ? -2 : entry.dp, s.dp());
    outside("context slice", entry.cp, s.cp);
    outside("stage", entry.pp, s.pp);
    for (int slot : entry.slots) outside("slot", slot < 0 ? -2 : slot, s.tp);
  }
  if (s.ep > 1 || s.expert_tp() != s.tp)
    problems.push_back(fmt::format(
        "inactive slots with ep={} etp={}: experts can only be split like the layers (ep 1, etp {})", s.ep,
        s.expert_tp(), s.tp));
  if (s.gtp > 1 || s.egtp > 1 || s.optimizer_instances > 1 || s.hybrid_cp || !s.cp_levels.empty())
    problems.push_back(
        "inactive slots go with one optimizer instance, and neither with weight shards nor with levels of "
        "context parallelism");
  if (!problems.empty()) return problems;
  for (int replica = 0; replica < s.dp(); ++replica)
    for (int context = 0; context < s.cp; ++context)
      for (int stage = 0; stage < s.pp; ++stage)
        if (active_slots(s, replica, context, stage).empty())
          problems.push_back(fmt::format(
              "inactive slots leave no rank of replica {}, context slice {}, stage {}: leave one at least",
              replica, context, stage));
  return problems;
}

}  // namespace megatron
