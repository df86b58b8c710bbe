#pragma once

#include "megatron/config/config.h"
#include "megatron/parallel/model_parallel.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// How a configuration divides a world of this many ranks.
ParallelSizes parallel_sizes(const Config& config, int64_t world);

// How one rank's blocks are split, given the groups that it is in.
ModelParallel model_parallel(const Config& config, const ParallelContext& parallel);

}  // namespace megatron
