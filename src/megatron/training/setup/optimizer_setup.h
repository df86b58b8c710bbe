#pragma once

#include <memory>

#include "megatron/config/config.h"
#include "megatron/optimizer/loss_scale.h"
#include "megatron/optimizer/optimizer.h"
#include "megatron/parallel/data/data_parallel.h"

namespace megatron {

// The data parallelism that a configuration asks for.
DataParallelOptions data_parallel_options(const DdpConfig& config);

// Whether a rank holds weights or states that no other one has: they are shared out among replicas, or there
// is one replica of the model, or of its experts, which have replicas of their own.
bool has_unshared_state(const Config& config, int replicas, int expert_replicas);

LossScaleOptions loss_scale_options(const OptimizerConfig& config);

// Of what this rank updates.
std::unique_ptr<Optimizer> make_optimizer(RankContext& ctx, const Config& config,
                                          const ParallelContext& parallel, const DataParallel& data_parallel);

}  // namespace megatron
