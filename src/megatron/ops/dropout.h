#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Where the local [rows, columns] matrix stands in the global one: what is dropped depends on that alone.
struct DropoutOffsets {
  int64_t row_begin = 0, column_begin = 0, global_columns = 0;  // 0: as many columns as x has
  Tensor rows = {};  // int64 [rows]: the place of each row beyond row_begin, where they do not stand in turn
};

// x · keep / (1 − p) (+ residual), where each element is kept with probability 1 − p. With p = 0 and no
// residual x itself is returned.
Tensor dropout(RankContext& ctx, const Tensor& x, double p, RngKey key, const DropoutOffsets& offsets = {},
               const Tensor& residual = {});

}  // namespace megatron::ops
