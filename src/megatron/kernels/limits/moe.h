#pragma once

#include "megatron/kernels/limits/refusal.h"
#include "megatron/kernels/moe.h"

namespace megatron {
namespace limits {

inline constexpr int kExpertSlots = 8192;  // experts among which tokens are sorted: counted in shared memory

}  // namespace limits

std::optional<Refusal> refuse(const ExpertSortArgs& args, const GpuFacts& gpu);

}  // namespace megatron
