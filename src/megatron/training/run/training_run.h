#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megatron/base/interruption.h"
#include "megatron/training/run/batch_schedule.h"
#include "megatron/training/run/callback.h"
#include "megatron/training/run/live_data.h"
#include "megatron/training/run/run_data.h"
#include "megatron/training/run/teacher_source.h"

namespace megatron {

class AutoBridge;
struct RestartState;

// A training run as all its ranks see it: run() makes one from what was asked for.
struct TrainingRun {
  Config config;
  RunData data;
  int64_t iterations = 0;                // of the whole run, counted from its beginning
  double planned_bytes = 0;              // of memory, of the rank that needs the most; 0: not planned
  std::shared_ptr<const AutoBridge> hf;  // where weights come from when there is no checkpoint; may be null
  std::string cache;      // the folder of what runs leave to later ones; "": the first rank leaves nothing
  TeacherSource teacher;  // where the weights of trainer.teacher come from
  TrainerOptions trainer;
  LiveDataMaker live_data;  // empty: `data` is all
  std::vector<std::shared_ptr<Callback>> callbacks;
  std::shared_ptr<const Interruption> interruption;  // null: signals are not looked at
  std::shared_ptr<RestartState> restart;             // null: a fault ends the run
  std::filesystem::file_time_type old_notice =
      std::filesystem::file_time_type::min();  // of a --preemption-file from before
  bool started_again = false;  // by a launcher or batch system, where the exit code asks for it
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

// The data and length that the configuration asks for, for a world of this many ranks. `data` is the
// program's own; without it, what the configuration names.
TrainingRun training_run(Config config, int64_t ranks, RunData data = {});

// When a file was written last; the earliest time where there is none.
std::filesystem::file_time_type write_time(const std::string& path);

// Why a run ended.
struct RunEnd {
  enum class Reason {
    finished,
    interval,
    phase,
    duration,
    signal,
    preempted,
    requested,
    ambiguous_result,
    wrong_result,
    straggler
  };
  Reason reason = Reason::finished;
  int signal = 0;
  bool saved = false;  // the last iteration is in a checkpoint
  TrainState state;
  bool goes_on = false;  // whoever started the run is to start it again

  std::string text() const;  // one line for people
  int exit_code() const;     // 0, 18 where the run goes on, or those of the rerun machine
};

// One rank's part of the run: sets up, loads the newest checkpoint of --load where there is one, trains,
// evaluates, saves. A run that was stopped and is started again goes on bit for bit as if it had not been,
// where its GEMMs use the same algorithms: see GemmAutotuneCache. `world` holds the ranks of `sizes` that
// train.
RunEnd train_rank(RankContext& ctx, const ProcessGroup& world, const ParallelSizes& sizes,
                  const TrainingRun& run);

}  // namespace megatron
