#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "megatron/training/run/memory_snapshot.h"
#include "megatron/training/run/rank_launch.h"
#include "megatron/training/run/restart_layout.h"
#include "megatron/training/run/section_timeouts.h"

namespace megatron {

// How a run goes on with the processes that a fault has left.
struct RestartPolicy {
  // The layout of those that are `left` of as many processes as there were at the start, the same answer in
  // all of them; what it leaves out waits in reserve. Empty: restart_layout().
  std::function<RestartLayout(const Config& config, int processes, const std::vector<int>& left)> layout = {};
};

// Ends a generation at a step boundary, on all ranks: a process waits to be taken into the next.
class ProcessReturned : public PeerLost {
 public:
  ProcessReturned() : PeerLost("a process has come back") {}
};

// What outlives the generations of a run, of one rank of a process.
struct RankMemory {
  MemorySnapshot snapshot;
  StepTimes steps;
  std::set<std::string> lock_holders;  // processes of this run that have locked --save, or may have
  int64_t iteration = -1;     // of the state that the rank trained on last; -1: it was in reserve since
  int64_t reached = -1;       // the last that was made, also where the run has gone back since
  int64_t gone_back_to = -1;  // where memory did not suffice, until a step is made from there
};

// What outlives the generations of a run, of a process.
struct RestartState {
  explicit RestartState(int ranks_here) : ranks(static_cast<size_t>(ranks_here)) {}

  int number = 0;      // restarts so far
  std::string fault;   // the last one in a line; "" before the first
  std::string change;  // "7 of 8 processes go on"
  using Moment = std::chrono::steady_clock::time_point;
  // Moments of the last fault: this process noticed it, all its ranks had ended, processes had agreed.
  Moment noticed, stopped, met;
  int first_rank = 0;            // of this process in the generation
  ParallelSizes sizes;           // of the generation
  std::deque<RankMemory> ranks;  // of this process
  int64_t min_tp = 1;            // ranks of a replica that fits into memory, at least: see restart_memory.h

  std::function<bool()> has_newcomer = [] { return false; };  // whether one waits; any rank may ask

  // How long the restart took until the end of its first step, which is now, and what of it took how long.
  // A rank was `set_up`, then had `restored` its state, then begun to keep a copy of it.
  std::string tell_times(Moment set_up, Moment restored, Moment kept) const;
};

using RankRun = std::function<void(RankContext& ctx, const ProcessGroup& world)>;

// Runs `fn` on this process's ranks, as run_on_ranks does. Where --inprocess-restart asks for it, a fault
// ends no process but those that died: the others agree on who is left and run `fn` again, with `state`
// telling what happened and `config` changed to the layout of those that are left. Throws where that does not
// help: input that is refused, an error three times without progress, or a lost peer ten times, too few
// processes.
void run_with_restarts(Config& config, const LaunchPlace& place, const Log& log, const RestartPolicy& policy,
                       RestartState& state, const RankRun& fn);

}  // namespace megatron
