#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/log.h"
#include "megatron/comm/launch.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/training/run/restart.h"
#include "megatron/training/run/training_run.h"

namespace megatron {

// What a program asks of a training run. Only the sources of the configuration are needed.
struct RunSpec {
  Sources sources;                                        // settings, as a command line or a file gives them
  std::shared_ptr<const AutoBridge> hf = {};              // where weights begin; null: at random
  bool needs_weights = false;                             // a run that would begin at random is refused
  std::function<RunData(const Config&)> data = {};        // empty: what the configuration names
  LiveDataMaker live_data = {};                           // for runs that learn from their own answers
  TrainerOptions trainer = {};                            // an objective, adapters, frozen weights
  std::vector<std::shared_ptr<Callback>> callbacks = {};  // beside those that the configuration asks for
  RestartPolicy restart = {};                             // with --inprocess-restart
  Log log = Log();                                        // where the run speaks to people
  std::FILE* out = stdout;                                // Megatron's line of each iteration; null: none
};

// The settings of a command line: flags of Megatron-LM, --hf, --config, --recipe, section.key=value.
RunSpec run_spec(std::span<const std::string> arguments);
RunSpec run_spec(std::string_view arguments);  // separated by blanks

// Trains: resolves the configuration, refuses what cannot work before anything is allocated, plans memory,
// launches this process's ranks, trains, evaluates and saves. SIGINT and SIGTERM end the run after the step,
// saved. An Error tells what went wrong.
RunEnd run(const RunSpec& spec);

// What run() begins with: the configuration that the sources give, checked against this machine.
Resolved resolve_run(const RunSpec& spec, const LaunchPlace& place);

}  // namespace megatron
