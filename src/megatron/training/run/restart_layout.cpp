#include "megatron/training/run/restart_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/config/resolve/inactive_slots.h"
#include "megatron/config/rules/nonuniform_refusals.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/run/batch_schedule.h"

namespace megatron {
namespace {

struct SlotPlace {
  int dp, cp, pp, tp;
};

// Finds the layout. Processes have places: as many slots in a row as a process has ranks.
class LayoutSearch {
 public:
  LayoutSearch(const Config& config, int processes, const std::vector<int>& left, int64_t min_tp)
      : config_(config),
        alive_(left.begin(), left.end()),
        ranks_(static_cast<int>(config.run.ranks)),
        min_tp_(min_tp),
        shrinks_(may_lose_ranks(config)) {
    const int64_t wanted = config.inprocess_restart.active_world_size;
    const int64_t world = wanted > 0 ? wanted : processes * ranks_;
    Config whole = config;
    whole.parallel.tp_spares = 0;
    whole.parallel.non_active_ranks_per_dp.clear();
    sizes_ = parallel_sizes(whole, world);
    check_parallel(sizes_);
    const RankGrid grid = dense_grid(sizes_);
    for (int slot = 0; slot < sizes_.world; ++slot)
      slots_.push_back({grid.coordinate(slot, "dp"), grid.coordinate(slot, "cp"), grid.coordinate(slot, "pp"),
                        grid.coordinate(slot, "tp")});
    for (int replica = 0; replica < sizes_.dp(); ++replica) kept_.insert(replica);
    const std::vector<InactiveSlotsEntry> given = inactive_slots(config.parallel);
    for (const SlotPlace& at : slots_)
      idle_.push_back(std::any_of(given.begin(), given.end(), [&](const InactiveSlotsEntry& entry) {
        return entry.dp == at.dp && (entry.cp < 0 || entry.cp == at.cp) &&
               (entry.pp < 0 || entry.pp == at.pp) &&
               std::find(entry.slots.begin(), entry.slots.end(), at.tp) != entry.slots.end();
      }));
  }

  RestartLayout find() {
    while (!kept_.empty()) {
      fill_places();
      const std::set<int> lost = lost_slots();
      if (const std::optional<int> replica = to_drop(lost)) {
        drop(*replica);
        continue;
      }
      return made(lost);
    }
    return {};
  }

 private:
  int places() const { return sizes_.world / ranks_; }
  bool is_kept(int slot) const { return kept_.contains(slots_[static_cast<size_t>(slot)].dp); }
  bool is_idle(int slot) const { return idle_[static_cast<size_t>(slot)]; }
  bool is_needed(int place) const {
    for (int slot = place * ranks_; slot < (place + 1) * ranks_; ++slot)
      if (is_kept(slot) && !is_idle(slot)) return true;
    return false;
  }

  void fill_places() {
    holder_.clear();
    std::set<int> reserve;
    for (const int process : alive_)
      if (process < places() && is_needed(process))
        holder_[process] = process;
      else
        reserve.insert(process);
    for (int place = 0; place < places() && !reserve.empty(); ++place) {
      if (!is_needed(place) || holder_.contains(place)) continue;
      const int nearest = *std::min_element(reserve.begin(), reserve.end(), [&](int a, int b) {
        return std::abs(a - place) < std::abs(b - place);
      });
      holder_[place] = nearest;
      reserve.erase(nearest);
    }
  }

  // Of the replicas that are kept: slots that nobody fills, or that idle.
  std::set<int> lost_slots() const {
    std::set<int> lost;
    for (int slot = 0; slot < sizes_.world; ++slot)
      if (is_kept(slot) && (is_idle(slot) || !holder_.contains(slot / ranks_))) lost.insert(slot);
    return lost;
  }

  // A replica that cannot go on: the one that has lost the most.
  std::optional<int> to_drop(const std::set<int>& lost) {
    if (lost.empty()) return shares_evenly() ? std::nullopt : std::optional<int>(*kept_.rbegin());
    std::map<int, int> missing;                        // by replica
    std::map<std::tuple<int, int, int>, int> present;  // by tensor-parallel group
    for (int slot = 0; slot < sizes_.world; ++slot) {
      const SlotPlace& at = slots_[static_cast<size_t>(slot)];
      if (!is_kept(slot)) continue;
      missing[at.dp] += lost.contains(slot);
      present[{at.dp, at.cp, at.pp}] += !lost.contains(slot);
    }
    std::optional<int> worst;
    const auto consider = [&](int replica) {
      if (!worst || missing[replica] >= missing[*worst]) worst = replica;
    };
    if (!shrinks_) {
      for (const auto& [replica, count] : missing)
        if (count > 0) consider(replica);
    } else {
      std::map<int, int64_t> smallest;  // tensor-parallel group of a replica
      for (const auto& [group, count] : present) {
        const auto own = smallest.emplace(std::get<0>(group), count).first;
        own->second = std::min<int64_t>(own->second, count);
      }
      for (const auto& [replica, count] : smallest)
        if (count < min_tp_) consider(replica);
      if (worst && smallest[*worst] > 0)
        note_ = fmt::format(
            "a replica of {} of {} tensor-parallel ranks would not fit into memory and is dropped",
            smallest[*worst], sizes_.tp);
    }
    return worst;
  }

  bool shares_evenly() const try {
    const BatchSchedule batches(config_, std::ssize(kept_));
    return true;
  } catch (const ConfigError&) {
    return false;
  }

  // With those that share processes with it.
  void drop(int replica) {
    std::vector<int> left = {replica};
    while (!left.empty()) {
      const int next = left.back();
      left.pop_back();
      if (kept_.erase(next) == 0) continue;
      for (int slot = 0; slot < sizes_.world; ++slot) {
        if (slots_[static_cast<size_t>(slot)].dp != next) continue;
        const int first = slot / ranks_ * ranks_;
        for (int other = first; other < first + ranks_; ++other)
          left.push_back(slots_[static_cast<size_t>(other)].dp);
      }
    }
  }

  // Slots of the replicas that are kept are numbered anew.
  RestartLayout made(const std::set<int>& lost) const {
    RestartLayout layout;
    layout.note = note_;
    std::map<int, int> number;  // of each replica
    for (const int replica : kept_) number.emplace(replica, static_cast<int>(std::ssize(number)));
    for (int slot = 0; slot < sizes_.world; ++slot) {
      if (!is_kept(slot)) continue;
      const auto renumbered = static_cast<int>(layout.slots++);
      const auto holder = holder_.find(slot / ranks_);
      if (holder != holder_.end()) {
        layout.slot_of_rank.push_back(renumbered);
        if (slot % ranks_ == 0) layout.processes.push_back(holder->second);
      }
      const SlotPlace& at = slots_[static_cast<size_t>(slot)];
      if (lost.contains(slot))
        layout.lost.push_back(fmt::format("{}.{}.{}:{}", number[at.dp], at.cp, at.pp, at.tp));
    }
    if (std::ssize(layout.slot_of_rank) == layout.slots) layout.slot_of_rank.clear();
    return layout;
  }

  const Config& config_;
  std::set<int> alive_;
  int ranks_;       // of a process
  int64_t min_tp_;  // of a replica that goes on
  bool shrinks_;
  ParallelSizes sizes_;           // of the whole layout
  std::vector<SlotPlace> slots_;  // by number
  std::vector<bool> idle_;        // as the settings ask for it
  std::set<int> kept_;            // replicas
  std::map<int, int> holder_;     // processes by place
  std::string note_;
};

}  // namespace

void RestartLayout::apply(Config& config) const {
  config.parallel.tp_spares = 0;
  config.parallel.non_active_ranks_per_dp = lost;
}

ParallelSizes RestartLayout::sizes(const Config& applied) const {
  ParallelSizes sizes = parallel_sizes(applied, slots);
  sizes.slot_of_rank = slot_of_rank;
  return sizes;
}

RestartLayout restart_layout(const Config& config, int processes, const std::vector<int>& left,
                             int64_t min_tp) {
  return LayoutSearch(config, processes, left, std::max<int64_t>(1, min_tp)).find();
}

std::string layout_name(const Config& config, const ParallelContext& parallel) {
  const UnequalReplicas* unequal = parallel.unequal();
  return fmt::format(
      "tp {} pp {} cp {} dp {}{}",
      unequal ? fmt::format("{}", fmt::join(unequal->tp_sizes, "+"))
              : std::to_string(parallel.size(Axis::tp)),
      parallel.size(Axis::pp), parallel.size(Axis::cp), parallel.replicas(),
      unequal ? fmt::format(" without slots {}", fmt::join(config.parallel.non_active_ranks_per_dp, " "))
              : "");
}

}  // namespace megatron
