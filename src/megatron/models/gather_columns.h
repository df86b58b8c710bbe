#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// The columns [rows, columns] of all ranks side by side.
Tensor gather_columns(RankContext& ctx, const Tensor& part, const ProcessGroup& group);

// The first `columns` of x [rows, columns or more] in `dtype`, contiguous: x itself where it is that.
Tensor first_columns(RankContext& ctx, const Tensor& x, int64_t columns, DType dtype);

}  // namespace megatron
