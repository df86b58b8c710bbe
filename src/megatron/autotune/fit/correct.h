#pragma once

#include <vector>

#include "megatron/autotune/search/search.h"

namespace megatron::autotune {

// A calibration that agrees with plans that were run: rates change by what all of them have in common, and
// layers of each shape that occurs get a factor for the rest. Candidates without a measurement do not count.
Calibration corrected(const CostInputs& in, const std::vector<Candidate>& plans);

}  // namespace megatron::autotune
