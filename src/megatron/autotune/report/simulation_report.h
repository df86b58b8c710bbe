#pragma once

#include <string>

#include "megatron/autotune/simulate/iteration.h"
#include "megatron/base/json.h"
#include "megatron/report/chart.h"
#include "megatron/report/trace.h"

namespace megatron::autotune {

// Stages over time in `columns` columns, one line each: F, B, W, dots where a stage waits, U the update.
std::string simulation_lanes(const SimulatedIteration& run, int columns);
// Figures of an iteration, what each stage does with its time, and the lanes.
std::string simulation_text(const CostInputs& in, const ParallelPlan& plan, const SimulatedIteration& run);
Json simulation_json(const ParallelPlan& plan, const SimulatedIteration& run);

// The lanes as a chart of a page, of the first `most` spans of each stage.
report::LaneChart simulation_chart(const SimulatedIteration& run, size_t most);

// The lanes as one SVG file that needs nothing else.
std::string simulation_svg(const SimulatedIteration& run, const std::string& title);

// The iteration of `replicas` pipelines as a trace of ranks; every other rank is like one of them.
report::Trace simulation_trace(const SimulatedIteration& run, int replicas);

}  // namespace megatron::autotune
