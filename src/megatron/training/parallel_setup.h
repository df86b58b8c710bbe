#pragma once

#include "megatron/config/config.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron {

// How a configuration divides a world of this many ranks.
ParallelSizes parallel_sizes(const Config& config, int64_t world);

}  // namespace megatron
