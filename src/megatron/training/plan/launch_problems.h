#pragma once

#include <span>

#include "megatron/config/resolve/resolve.h"
#include "megatron/kernels/limits/refusal.h"

namespace megatron {

// The settings that lead to launches which GPUs refuse, each with what helps; one for what it asks for most.
std::vector<Problem> launch_problems(const Resolved& resolved, std::span<const Refusal> refusals);

// Throws these as Refused, where there are any.
void check_launches(const Resolved& resolved, std::span<const Refusal> refusals);
// Of what would be refused whatever is computed: GPUs that are too old, too many ranks that share them.
void check_gpus(const Resolved& resolved);
// Of a model that is run forward in a world of so many ranks; lengths come later, and the kernels look at
// them.
void check_forward_launches(const Resolved& resolved, int64_t world);

}  // namespace megatron
