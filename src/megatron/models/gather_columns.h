#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// The columns [rows, columns] of all ranks side by side.
Tensor gather_columns(RankContext& ctx, const Tensor& part, const ProcessGroup& group);

}  // namespace megatron
