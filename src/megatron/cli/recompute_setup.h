#pragma once

#include <optional>

#include "megatron/device/device.h"
#include "megatron/training/recompute_choice.h"

namespace megatron {

// Nine tenths of the memory of this kind of device, shared among as many ranks of this machine; the rest is
// for what libraries keep and for gaps.
double usable_memory(DeviceType device, int64_t ranks_here);

// Where the modules are to be chosen (--recompute-modules auto), chooses them for --recompute-memory-gib or,
// without it, for `otherwise` bytes a rank.
std::optional<RecomputeChoice> settle_recompute(Config& config, const ParallelSizes& sizes, DType dtype,
                                                DeviceType device, double otherwise);

}  // namespace megatron
