#pragma once

#include <string>

#include "megatron/parallel/pipeline/simulator.h"

namespace megatron {

// The timeline of a schedule for people, one line a rank, one cell a unit of time: F3 is the forward of
// micro-batch 3, B its backward, W its weight gradients apart; with several chunks a rank F3.1 is that of
// chunk 1; dots are waiting. Lines longer than `width` are cut.
std::string pipeline_timeline(const PipelineShape& shape, const Simulation& run, int width = 160);

}  // namespace megatron
