#pragma once

#include <span>

#include "megatron/nn/parameter_slice.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// Sums over all elements of the model, each counted once however many ranks hold it: one fp64 element on the
// device. sharded: the slices of data-parallel ranks are parts of the model too, not copies.

// The L2 norm of all gradients.
Tensor gradient_norm(RankContext& ctx, std::span<const ParameterSlice> slices,
                     const ParallelContext& parallel, bool sharded);

// How many elements of the gradients are zero. Padding of the vocabulary is not counted.
Tensor gradient_zeros(RankContext& ctx, std::span<const ParameterSlice> slices,
                      const ParallelContext& parallel, bool sharded);

// The L2 norm of all values: of parameters, or of their fp32 masters.
Tensor parameter_norm(RankContext& ctx, std::span<const ParameterSlice> slices,
                      const ParallelContext& parallel, bool sharded);

// min(1, limit / (norm + 1e-6)), on the device.
Tensor clip_coefficient(RankContext& ctx, const Tensor& norm, double limit);

}  // namespace megatron
