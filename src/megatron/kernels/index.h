#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// out[i] = table[ids[i] − first]; rows outside the table become zero (vocabulary parallelism). ids int64.
struct GatherRowsArgs {
  Tensor table, ids, out;
  int64_t first = 0;
};

// out[ids[i] − first] += source[i], in the order of i whatever the number of threads. Without `accumulate`
// out starts at zero.
struct ScatterAddRowsArgs {
  Tensor source, ids, out;
  int64_t first = 0;
  bool accumulate = true;
};

// out[ids[i]] = source[i], rows of any dtype and shape; no id comes twice, and all are within. out and source
// have contiguous rows.
struct PutRowsArgs {
  Tensor source, ids, out;
};

// out[r, j] = x[r, indices[r, j]]. x [rows, n], indices int64 [rows, k], within the row.
struct GatherColumnsArgs {
  Tensor x, indices, out;
};

// out[r, indices[r, j]] = Σ source[r, j] in the order of j, zero elsewhere.
struct ScatterColumnsArgs {
  Tensor source, indices, out;
};

struct TopKArgs {  // of each row of x [rows, n], descending, the lower index first among equals; indices
                   // int64
  Tensor x, values, indices;
};

}  // namespace megatron
