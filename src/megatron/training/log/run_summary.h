#pragma once

#include <string>

#include "megatron/config/config.h"
#include "megatron/training/plan/plan.h"

namespace megatron {

// 60.1 k, 354.9 M, 6.74 B, 1.04 T
std::string count_text(double count);

// What a run is about to do, in a dozen lines: model, batch, numbers, layout, memory of the largest rank by
// tag. `device` names what the ranks compute on.
std::string run_summary(const Config& config, const RunPlan& plan, const std::string& device);

}  // namespace megatron
