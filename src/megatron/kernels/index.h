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

struct TopKArgs {  // of each row of x [rows, n], descending, the lower index first among equals; indices
                   // int64
  Tensor x, values, indices;
};

}  // namespace megatron
