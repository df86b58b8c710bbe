#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

// Linear layers over a tensor-parallel group whose communication runs beside their GEMMs.
namespace megatron {

// y = x · wᵀ (+ bias), the rows of w split over the group. With sequence parallelism x is this rank's share
// of the tokens and y has all of them: blocks of tokens travel around the group while the one held is
// multiplied. The input is not kept whole: backward gathers it again while the gradient of x is computed, and
// sums that over ranks while the gradient of w is.
Tensor column_parallel_linear(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                              const TensorParallel& tp);

// y = x · wᵀ summed over ranks, the columns of w split over the group, with sequence parallelism: y has this
// rank's share of the tokens. Sums of blocks of tokens travel around the group while the next one is
// multiplied, and so, in backward, do the blocks of the gradient.
Tensor row_parallel_linear(RankContext& ctx, const Tensor& x, const Weight& weight, const TensorParallel& tp);

}  // namespace megatron
