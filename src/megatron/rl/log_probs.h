#pragma once

#include <span>
#include <vector>

#include "megatron/models/model.h"

namespace megatron::rl {

// The log-probability of every label under a model, forward alone: of each micro-batch [rows · length], 0
// where a label is ignored. All ranks of the model call it with the same micro-batches, and get the same.
std::vector<std::vector<double>> label_log_probs(RankContext& ctx, Model& model,
                                                 const ParallelContext& parallel,
                                                 std::span<const Batch> batches);

}  // namespace megatron::rl
