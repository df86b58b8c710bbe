#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

// The communication between tensor-parallel parts, each with its dual in the backward pass. With one rank all
// are identities. Tokens are the first dimension.
namespace megatron {

// Into a column-parallel GEMM: identity, all-reduce of the gradient; with sequence parallelism all-gather
// of the tokens, reduce-scatter of the gradient.
Tensor enter_tensor_parallel(RankContext& ctx, const Tensor& x, const TensorParallel& tp);
// Out of a row-parallel GEMM: all-reduce, identity; with sequence parallelism reduce-scatter, all-gather.
Tensor leave_tensor_parallel(RankContext& ctx, const Tensor& x, const TensorParallel& tp);
// The sum over the ranks' parts, of which every rank uses the whole: all-reduce both ways.
Tensor sum_tensor_parallel(RankContext& ctx, const Tensor& x, const TensorParallel& tp);

}  // namespace megatron
