#pragma once

#include <functional>
#include <memory>
#include <string>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"
#include "megatron/training/log/iteration_log.h"
#include "megatron/training/run/run_data.h"

namespace megatron {

class AutoBridge;

// A training run as all its ranks see it.
struct TrainingRun {
  Config config;
  RunData data;
  int64_t iterations = 0;                // of the whole run, counted from its beginning
  double planned_bytes = 0;              // of memory, of the rank that needs the most; 0: not planned
  std::shared_ptr<const AutoBridge> hf;  // where weights come from when there is no checkpoint; may be null
  std::string cache;  // the folder of what runs leave to later ones; "": the first rank leaves nothing
  // Told on the first rank, after every iteration.
  std::function<void(const IterationReport& report)> on_iteration;
  std::function<void(const std::string& what)> on_event;  // saved, loaded: a line for people
};

TrainingRun training_run(Config config);  // the data and length that the configuration asks for

// One rank's part of the run: sets up, loads the newest checkpoint of --load where there is one, trains,
// saves. A run that was stopped and is started again goes on bit for bit as if it had not been, where its
// GEMMs use the same algorithms: see GemmAutotuneCache.
void train_rank(RankContext& ctx, const ProcessGroup& world, const TrainingRun& run);

}  // namespace megatron
