#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// out[i] = x[ids[i]]: x [rows, columns], ids int64 [n]. An id outside x gives zeros.
Tensor gather_rows(RankContext& ctx, const Tensor& x, const Tensor& ids);

// out [rows, columns], out[ids[i]] = Σ source[i], in the order of i: source [n, columns]. An id outside is
// left out.
Tensor scatter_add_rows(RankContext& ctx, const Tensor& source, const Tensor& ids, int64_t rows);

// out[ids[i]] = source[i] in place: rows of any shape, ids int64 [n], no id twice. Records nothing.
void put_rows(RankContext& ctx, const Tensor& source, const Tensor& ids, const Tensor& out);

// out[r, j] = x[r, indices[r, j]]: x [rows, n], indices int64 [rows, k], each in [0, n) (looked at on the
// CPU).
Tensor gather_columns(RankContext& ctx, const Tensor& x, const Tensor& indices);

struct TopK {
  Tensor values, indices;  // [rows, k]; indices int64, without a gradient
};

// The k largest of each row of x [rows, n], descending, the lower index first among equals.
TopK top_k(RankContext& ctx, const Tensor& x, int64_t k);

}  // namespace megatron::ops
