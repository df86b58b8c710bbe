#pragma once

#include "megatron/cli/commands/autotune_setup.h"

namespace megatron {

// Runs a recipe on so many ranks of this machine; the median of the seconds of its steps behind the first.
double run_plan_steps(const Log& log, const std::string& recipe, int ranks, int64_t warmup, int64_t steps);

// A small model that calibrates CPU ranks, and the plans of it that are run.
struct CalibrationModel {
  PlanSetup setup;
  std::vector<autotune::ParallelPlan> plans;
};
std::vector<CalibrationModel> calibration_models(int ranks);

// Constants for CPU ranks of this machine, from steps of the plans of calibration_models(); none where fewer
// than six of them can be run.
std::optional<autotune::Calibration> cpu_calibration(const Invocation& invocation,
                                                     const autotune::Cluster& cluster);

// Replaces the constants of a setup by those of cpu_calibration(), in place, where CPU ranks are planned for,
// each has a core here, and neither --constants nor --resume is given.
void calibrate_cpu_ranks(const Invocation& invocation, const CommandLine& line, PlanSetup& setup);

// Flags as autotune_plan_flags() has them, for the commands that call calibrate_cpu_ranks().
std::vector<CommandFlag> autotune_calibrated_flags();

}  // namespace megatron
