#pragma once

#include <optional>

#include "megatron/device/device.h"
#include "megatron/training/recompute_choice.h"

namespace megatron {

// Where the modules of selective recompute are to be chosen (--recompute-modules auto), chooses them: for
// --recompute-memory-gib or, without it, for nine tenths of the memory of this kind of device, shared among
// `ranks_here` ranks of this machine. The rest is for what libraries keep and for gaps.
std::optional<RecomputeChoice> settle_recompute(Config& config, const ParallelSizes& sizes, DType dtype,
                                                DeviceType device, int64_t ranks_here);

}  // namespace megatron
