#pragma once

#include <array>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/schema/optimizer_config.h"

namespace megatron {

// a, b and c of one step X ← aX + (bA + cA²)X with A = XXᵀ.
using NewtonSchulzStep = std::array<double, 3>;

// The steps of a named set; more steps than the set has begin again at its first, or repeat its last, as the
// set is meant.
std::vector<NewtonSchulzStep> newton_schulz_steps(MuonCoefficients kind, int64_t count);

// Matrices of which other ranks have further rows (dim 0) or columns (dim 1).
struct ShardedMatrix {
  ProcessGroup group;
  int dim = 0;
};

// About the nearest matrix with orthonormal rows or columns of each of `matrices`, [count, m, n]:
// Newton-Schulz iteration from X / ‖X‖, in their own dtype (fp32 or fp64). With `split`, they are parts of
// larger ones: Gram matrices are summed over the ranks, nothing is gathered.
Tensor orthogonalize(RankContext& ctx, const Tensor& matrices, std::span<const NewtonSchulzStep> steps,
                     const ShardedMatrix* split = nullptr);

}  // namespace megatron
