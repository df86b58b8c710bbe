#pragma once

#include <string>

#include "megatron/config/config.h"
#include "megatron/training/plan/plan.h"

namespace megatron {

// What a run is about to do, in a dozen lines: model, batch, numbers, layout, memory of the largest rank by
// tag. `device` names what the ranks compute on.
std::string run_summary(const Config& config, const RunPlan& plan, const std::string& device);

}  // namespace megatron
