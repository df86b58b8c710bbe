#pragma once

#include "megatron/ops/linear_route.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

// Linears over a tensor-parallel group whose communication runs beside their GEMMs.
namespace megatron {

// y = x · wᵀ (+ bias), the rows of w split over the group. With sequence parallelism x is this rank's share
// of the tokens and y has all of them: blocks of tokens travel around the group while the one held is
// multiplied. The input is not kept whole: backward gathers it again while the gradient of x is computed, and
// sums that over ranks while the gradient of w is.
std::shared_ptr<const ops::LinearRoute> column_route(const TensorParallel& tp);

// y = x · wᵀ summed over ranks, the columns of w split over the group, with sequence parallelism: y has this
// rank's share of the tokens. Sums of blocks of tokens travel around the group while the next one is
// multiplied, and so, in backward, do the blocks of the gradient.
std::shared_ptr<const ops::LinearRoute> row_route(const TensorParallel& tp);

}  // namespace megatron
