#pragma once

#include <memory>
#include <span>

#include "megatron/autotune/measure/op_pricer.h"
#include "megatron/autotune/search/search.h"
#include "megatron/cli/command.h"
#include "megatron/config/resolve/resolve.h"

namespace megatron {

// Flags of the parts of `autotune` that take a model and a machine.
std::span<const CommandFlag> autotune_plan_flags();
// The lines of --help that list flags.
std::string autotune_flags_text(std::span<const CommandFlag> flags);

// A model, a machine and what was given of a plan.
struct PlanSetup {
  Resolved resolved;
  autotune::ModelShape model;
  autotune::Cluster cluster;
  autotune::Calibration calibration;
  int64_t gbs, seq;
  autotune::Precision precision;
  double expert_imbalance;
  bool forward_only = false;
  std::shared_ptr<const autotune::OpPricer> ops;  // by --database, or what comes with the program for the GPU

  autotune::CostInputs inputs() const;
  bool given(std::string_view name) const { return resolved.origin(name).source >= Source::recipe; }
};
PlanSetup autotune_plan_setup(const CommandLine& line);

autotune::Calibration autotune_calibration(const CommandLine& line, std::string_view shipped);

// The plan that the settings give; a ConfigError where it cannot be run.
autotune::ParallelPlan given_plan(const PlanSetup& setup);

// What is to be searched: sizes and switches that were given are kept.
autotune::SearchRequest search_request(const PlanSetup& setup, const CommandLine& line);

}  // namespace megatron
