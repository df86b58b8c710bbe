#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "megatron/autograd/op_listener.h"
#include "megatron/autotune/measure/step_database.h"
#include "megatron/training/run/run.h"

namespace megatron {

// Times every op of a training step where it runs: an event behind each on a GPU, the clock on the host. What
// lies between two events belongs to the later op. An op that the device had to wait for is left out, since
// its time would be the host's.
class OpTimer final : public OpListener {
 public:
  explicit OpTimer(RankContext& ctx) : ctx_(ctx) {}
  ~OpTimer() override { ctx_.tracer = nullptr; }

  void start_step();
  void end_step();  // waits for the device
  using OpListener::op;
  void op(const OpKey& key, const Cost& cost) override;

  // Ops of a step with the medians of their times.
  std::vector<autotune::StepOp> ops() const;
  double host_us = 0;  // until the host had launched the last step

 private:
  using Clock = std::chrono::steady_clock;
  struct Mark {
    OpKey key;
    Cost cost;
    double host;  // microseconds since the step began
  };

  struct Times {
    autotune::StepOp op;
    std::vector<double> us;
  };

  Event& event(size_t at);

  RankContext& ctx_;
  std::vector<Mark> marks_;
  std::deque<Event> events_;  // the first stands before all ops; they serve step after step
  Clock::time_point start_;
  std::map<std::pair<std::string, std::array<double, 4>>, Times> times_;
  int steps_ = 0;
};

// Runs steps of the trainer for about `seconds`, without and with timed ops.
autotune::MeasuredStep profile_steps(RunView& view, const std::string& name, double seconds);

// Ops of a step of the configuration on shapes alone, and the memory that it needs. A GPU fuses some of them.
struct PlannedStep {
  std::vector<autotune::StepOp> ops;
  MemoryStatistics memory;
};
PlannedStep planned_step(const Config& config, bool cuda);

}  // namespace megatron
