#pragma once

#include <memory>

#include "megatron/config/config.h"
#include "megatron/optimizer/loss_scale.h"
#include "megatron/optimizer/optimizer.h"
#include "megatron/parallel/data/data_parallel.h"

namespace megatron {

// The data parallelism that a configuration asks for.
DataParallelOptions data_parallel_options(const DdpConfig& config);

LossScaleOptions loss_scale_options(const OptimizerConfig& config);

// Of what this rank updates.
std::unique_ptr<Optimizer> make_optimizer(RankContext& ctx, const Config& config,
                                          const ParallelContext& parallel, const DataParallel& data_parallel);

}  // namespace megatron
