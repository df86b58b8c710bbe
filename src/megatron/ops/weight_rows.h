#pragma once

#include <vector>

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Rows [begin, end) of a weight.
struct RowRange {
  int64_t begin = 0, end = 0;
};

// Some rows of a weight, one range behind the other, as a weight of their own; gradients go where the rows
// came from, and the other rows get zeros. For ops that give weight gradients with those of their inputs.
Weight weight_rows(RankContext& ctx, const Weight& weight, const std::vector<RowRange>& ranges);

}  // namespace megatron::ops
