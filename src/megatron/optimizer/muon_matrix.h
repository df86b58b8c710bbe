#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/schema/optimizer_config.h"

namespace megatron {

// The factor of an orthogonal direction of so many rows and columns.
double muon_scale(MuonScale mode, int64_t rows, int64_t columns);

// ‖X‖ of each of `matrices`, [count, m, n]: fp64 [count]. With `group`, its ranks have parts of them.
Tensor matrix_norms(RankContext& ctx, const Tensor& matrices, const ProcessGroup* group = nullptr);

}  // namespace megatron
