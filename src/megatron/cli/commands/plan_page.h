#pragma once

#include "megatron/report/page.h"
#include "megatron/training/plan/plan.h"

namespace megatron {

// The plan as pictures: memory of each rank of a pipeline by tag, below the limit where there is one,
// arithmetic, what leaves each rank, and the schedule. `held` says what each rank holds of the model.
report::Page plan_page(const RunPlan& plan, std::span<const std::string> held, const std::string& title,
                       double limit_bytes);

}  // namespace megatron
