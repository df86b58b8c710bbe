#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/nn/seq_info.h"
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

// Rows of zeros behind the tokens, so that sequence parallelism can split them, and the removal of such rows.
// Identities where groups are alike, or nothing is to do.
Tensor with_padding(RankContext& ctx, const Tensor& x, const TensorParallel& tp);
Tensor without_padding(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const TensorParallel& tp);
// x with that many rows: zeros are added, or the last ones left out.
Tensor with_rows(RankContext& ctx, const Tensor& x, int64_t rows);
// A rank's `rows` of a tensor of all tokens, without gradients, from `begin` on; zeros behind the last token.
Tensor rows_from(RankContext& ctx, const Tensor& all, int64_t begin, int64_t rows);

}  // namespace megatron
