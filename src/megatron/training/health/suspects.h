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

// An Error where loss or gradients of a step are not finite and the settings do not go on without its update:
// it says which rank's they are, as find_not_finite() does.
void require_finite(RankContext& ctx, const ProcessGroup& world, RankTrainer& trainer, const Config& config,
                    int64_t iteration, const StepReport& step);

}  // namespace megatron
