#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Where each copy of a token goes when copies are ordered by expert: see ExpertSortArgs. Everything stays on
// the device; the number of rows is the most that may be needed.
struct ExpertOrder {
  Tensor offsets;      // int32 [experts + 1]: rows of expert e are [offsets[e], offsets[e + 1])
  Tensor row_of_copy;  // int64 [tokens · k], −1 where dropped
  Tensor copy_of_row;  // int64 [rows], −1 for padding
  int64_t tokens = 0, k = 0;
};

// experts: int64 [tokens, k], −1 where a choice was dropped. Each expert's rows are padded to `alignment`.
ExpertOrder expert_sort(RankContext& ctx, const Tensor& experts, int64_t num_experts, int64_t alignment = 1);

// x [tokens, hidden] to [rows, hidden] in the order of experts; padding rows are zero.
Tensor permute(RankContext& ctx, const Tensor& x, const ExpertOrder& order);

// Back to [tokens, hidden]: the sum over a token's copies, each times its weight ([tokens, k]; 1 where left
// out). Weights may be wider than x, as the router's probabilities are.
Tensor unpermute(RankContext& ctx, const Tensor& x, const ExpertOrder& order, const Tensor& weights = {});

}  // namespace megatron::ops
