#pragma once

#include "megatron/config/config.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

// The fewest tensor-parallel ranks with which a replica can go on after a fault where each has `bytes` of
// memory: those that are left hold what the others held, too. As many as it has where it cannot go on with
// fewer in a world of so many ranks, which itself fits.
int64_t fewest_ranks_that_fit(const Config& config, int64_t world, DType dtype, const TrainerOptions& options,
                              double bytes);

}  // namespace megatron
