#pragma once

#include <span>

#include "megatron/nn/parameter.h"
#include "megatron/parallel/model_parallel.h"

namespace megatron {

// The L2 norm of all gradients of the model, each parameter counted once however many ranks hold it: one fp64
// element on the device.
Tensor gradient_norm(RankContext& ctx, std::span<Parameter* const> parameters, const ModelParallel& parallel,
                     const ProcessGroup& pipeline);

// min(1, limit / (norm + 1e-6)), on the device.
Tensor clip_coefficient(RankContext& ctx, const Tensor& norm, double limit);

}  // namespace megatron
