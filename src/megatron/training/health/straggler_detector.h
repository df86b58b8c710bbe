#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <thread>

#include "megatron/autograd/rank_context.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/training/health/straggler_scores.h"

namespace megatron {

// How long a rank waits for others in a step: the ranges of Work::wait(). On a GPU two events lie around each
// and are read when the step has ended.
class WaitMeter final : public Tracer {
 public:
  explicit WaitMeter(RankContext& ctx);
  ~WaitMeter() override;
  WaitMeter(const WaitMeter&) = delete;
  WaitMeter& operator=(const WaitMeter&) = delete;

  void op(const char* name, Phase phase, const Cost& cost) override;
  void begin(const char* name) override;
  void end() override;

  void start_step() { seconds_ = 0, used_ = 0; }
  double finish_step();  // seconds since start_step()

 private:
  using Clock = std::chrono::steady_clock;
  Event& mark();

  RankContext& ctx_;
  Tracer* next_;
  std::vector<bool> open_;  // of each open range: whether it is the wait that is timed
  int captured_ = 0;        // ranges since a capture began: nothing runs there
  bool waiting_ = false;
  Clock::time_point start_;
  double seconds_ = 0;
  std::deque<Event> events_;  // in pairs; those of the step, then ones to use again
  size_t used_ = 0;
};

// A port of this machine: who connects to it switches reports on or off, and is told which.
class StragglerSwitch {
 public:
  StragglerSwitch(int port, bool on);
  ~StragglerSwitch();

  bool on() const { return on_; }

 private:
  void serve(int port);

  std::atomic<bool> on_, ends_ = false;
  std::thread thread_;
};

// Scores the ranks of a run by their own work and names slow ones. Nothing is synchronised between reports.
class StragglerDetector {
 public:
  // All ranks make one.
  StragglerDetector(RankContext& ctx, const ProcessGroup& world, const ParallelContext& parallel,
                    const LoggerConfig& settings);

  void start_step();
  void finish_step(double seconds);  // that the step took

  // Whether it is time for a report, as the first rank sees it; ranks agree on it elsewhere.
  bool is_due() const;
  // On all ranks alike: the lines, and whether a rank is slow.
  std::pair<std::string, bool> report();

 private:
  using Clock = std::chrono::steady_clock;

  RankContext& ctx_;
  const ProcessGroup& world_;
  const LoggerConfig& settings_;
  int64_t peers_;
  WaitMeter waits_;
  std::unique_ptr<StragglerSwitch> switch_;  // the first rank's
  std::vector<double> busy_, waited_;        // of the steps since the last report
  double best_ = 0;                          // 0: none yet
  bool first_step_ = true;                   // which sets things up, and is not measured
  Clock::time_point reported_ = Clock::now();
};

}  // namespace megatron
