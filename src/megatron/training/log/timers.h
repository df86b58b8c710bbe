#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"

namespace megatron {

// Megatron-LM's timers, by name. A timer runs while the rank is in a range of some name (TraceRange), so that
// what is timed does not know of it, and nothing is timed where nobody listens. On a GPU two events lie
// around the range and are read when the step has ended: nothing waits for the device.
class Timers final : public Tracer {
 public:
  // Listens from now on; ranges and ops are passed on to whoever listened before. `level` is how fine: 0 is
  // setup, evaluation and checkpoints, 1 the parts of a step, 2 passes of micro-batches and their messages.
  Timers(RankContext& ctx, int64_t level);
  ~Timers() override;
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  void op(const char* name, Phase phase, const Cost& cost) override;
  void begin(const char* name) override;
  void end() override;

  // Reads the events of a step that has ended.
  void finish_step();

  struct Reading {
    std::string name;
    int64_t level = 0;
    double seconds = 0;  // since the last reset()
  };
  // All timers of the level, in Megatron-LM's order; 0 where one did not run.
  std::vector<Reading> readings() const;
  void reset();

 private:
  using Clock = std::chrono::steady_clock;
  struct Timer {
    int depth = 0;  // ranges of this timer that are open: a nested one adds nothing
    double seconds = 0;
    Clock::time_point start;
    size_t start_event = 0;
  };
  struct Interval {
    size_t timer, start_event, end_event;
  };

  size_t mark();  // an event behind what was asked of the device

  RankContext& ctx_;
  Tracer* next_;
  int64_t level_;
  std::vector<Timer> timers_;  // by row of the table of names
  int capture_depth_ = 0;      // ranges since a capture began
  std::vector<int> open_;      // the timer of each open range; -1: none
  std::deque<Event> events_;   // those of the step, then ones to use again
  size_t events_used_ = 0;
  std::vector<Interval> intervals_;  // of this step
};

// The readings of all ranks: per iteration, but of level 0 as a whole.
struct TimerTable {
  std::vector<Timers::Reading> timers;       // without their seconds
  std::vector<std::vector<double>> seconds;  // by rank, then timer
};

// Those of the last `iterations`. All ranks of the world call it with timers of one level.
TimerTable gather_timers(RankContext& ctx, const ProcessGroup& world, std::vector<Timers::Reading> readings,
                         int64_t iterations);

// Megatron-LM's block of the timers up to `level`, in milliseconds; "" where none ran.
std::string timers_block(const TimerTable& table, int64_t level, TimingLogOption option);

}  // namespace megatron
