#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron {

// bool [length, length]: whether a key (column) is the query (row) itself or stands before it.
Tensor causal_mask(RankContext& ctx, int64_t length);

}  // namespace megatron
