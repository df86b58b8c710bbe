#pragma once

#include <string>

#include "megatron/comm/process_group.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

// Where a result that cannot be right comes from, for people: the first weight or gradient of each rank that
// is not finite, "rank 1: the gradient of decoder.layers.0.mlp.linear_fc1.weight"; "" where all are. Reads
// every element on the host, so it is for runs that are about to end. All ranks call it alike.
std::string find_not_finite(RankContext& ctx, const ProcessGroup& world, RankTrainer& trainer);

// The gradient with the largest norm of all ranks, for a loss or norm far above those before.
std::string find_largest_gradient(RankContext& ctx, const ProcessGroup& world, RankTrainer& trainer);

}  // namespace megatron
