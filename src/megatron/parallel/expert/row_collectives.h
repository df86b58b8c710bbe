#pragma once

#include <functional>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

// Tokens (the rows of a matrix) on their way between ranks, each with its dual in the backward pass. Ranks of
// a group may hold different numbers of rows, up to a `share` that all know.
namespace megatron {

// The first Σ send rows of x go out, send[i] of them to rank i; recv[i] come from it. `meanwhile` runs while
// they travel. With `rows` the result has that many, of which those beyond the arrived hold nothing.
// `fill_backward`: while gradients travel back, weight gradients that wait for their step are made.
Tensor all_to_all_rows(RankContext& ctx, const Tensor& x, const std::vector<int64_t>& send,
                       const std::vector<int64_t>& recv, const ProcessGroup& group,
                       const std::function<void()>& meanwhile = {}, int64_t rows = -1,
                       bool fill_backward = false);

// [rows, columns] to [size · share, columns]: the rows of all ranks, each padded to `share` with `padding`.
// The gradient is summed over the ranks.
Tensor all_gather_rows(RankContext& ctx, const Tensor& x, int64_t share, const ProcessGroup& group,
                       double padding = 0);

// [size · share, columns] summed over the ranks, of which this rank gets the first `rows` of its share.
Tensor reduce_scatter_rows(RankContext& ctx, const Tensor& x, int64_t rows, const ProcessGroup& group);

// What of `tokens` rows a rank takes where each takes ⌈tokens / size⌉ of them in turn.
struct RowShare {
  int64_t begin = 0, rows = 0, share = 0;
};
RowShare share_of_rows(int64_t tokens, const ProcessGroup& group);

// x is the same on every rank; each goes on with its share of the rows. The gradient is put together again.
Tensor take_rows(RankContext& ctx, const Tensor& x, const ProcessGroup& group);
// The inverse: the shares of all ranks, `tokens` rows in all. Each rank keeps its part of the gradient.
Tensor join_rows(RankContext& ctx, const Tensor& x, int64_t tokens, const ProcessGroup& group);

}  // namespace megatron
