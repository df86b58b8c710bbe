#pragma once

#include <optional>

#include "megatron/device/device.h"
#include "megatron/training/plan/recompute_choice.h"

namespace megatron {

// Where the modules of selective recompute are to be chosen (--recompute-modules auto), chooses them: for
// --recompute-memory-gib or, without it, for nine tenths of the memory of this kind of device, which
// `sharing` ranks have together. The rest is for what libraries keep and for gaps.
std::optional<RecomputeChoice> settle_recompute(Config& config, const ParallelSizes& sizes, DType dtype,
                                                DeviceType device, int64_t sharing);

// How many of this machine's ranks share a device. Processes that see fewer GPUs than there are processes
// have been given their own.
int64_t ranks_on_a_device(DeviceType device, int64_t ranks, int64_t processes_here);

}  // namespace megatron
