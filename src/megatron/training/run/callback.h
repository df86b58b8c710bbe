#pragma once

#include <string>
#include <string_view>

#include "megatron/comm/process_group.h"
#include "megatron/training/log/iteration_log.h"
#include "megatron/training/run/train_state.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

struct TimerTable;

// The mean losses of one evaluation.
struct EvaluationReport {
  std::string set;  // "validation", "test", or the name of one of several validation sets
  int64_t iteration = 0, batches = 0;
  double loss = 0;
  std::vector<LossTerm> terms = {};  // what an evaluation of live data tells in place of the loss
};

enum class RunEvent {
  train_start,  // everything is built and loaded
  step_start,
  step_end,  // with the report of the iteration
  eval_start,
  eval_end,  // of each set, with its report
  test_start,
  test_end,
  save,  // a checkpoint of this iteration is complete, or on its way where saving is asynchronous
  train_end,
};

// What a callback sees of a rank's run, and what it may ask for. Requests of any rank are granted on all,
// after the iteration.
struct RunView {
  const Config& config;
  RankContext& ctx;
  const ProcessGroup& world;
  RankTrainer& trainer;
  TrainState& state;
  const IterationReport* report = nullptr;       // at step_end
  const EvaluationReport* evaluation = nullptr;  // at eval_end and test_end
  // At train_start those of the setup, at step_end of each --log-interval those since the last; null: not
  // asked for by --timing-log-level.
  const TimerTable* timers = nullptr;
  bool save_requested = false, stop_requested = false;

  bool is_first_rank() const { return world.rank() == 0; }
  void save() { save_requested = true; }
  void stop() { stop_requested = true; }  // ends the run as if its last iteration were done
};

// What a program does beside the steps of a run: logs, metrics, profiles, schedules of its own. Every event
// comes on every rank, on the thread of that rank, in the order in which callbacks were given; an exception
// ends the run.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on(RunEvent, RunView&) {}
  // A log line of the run, such as "saved DIR", on the first rank alone.
  virtual void on_message(std::string_view) {}
};

}  // namespace megatron
