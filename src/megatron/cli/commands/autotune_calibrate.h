#pragma once

#include "megatron/cli/commands/autotune_setup.h"

namespace megatron {

// Runs a recipe on so many ranks of this machine; the median of the seconds of its steps behind the first.
double run_plan_steps(const Log& log, const std::string& recipe, int ranks, int64_t warmup, int64_t steps);

// Constants for CPU ranks of this machine, from some seconds of training small models in several layouts.
autotune::Calibration cpu_calibration(const Invocation& invocation, const autotune::Cluster& cluster);

// As autotune_plan_setup; where CPU ranks of this machine are planned for and no constants are given, with
// those of cpu_calibration().
PlanSetup autotune_calibrated_setup(const Invocation& invocation, const CommandLine& line);

}  // namespace megatron
