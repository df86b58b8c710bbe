#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// indices[r] (int64, [rows]) is where the largest element of row r of x [rows, n] stands, the first among
// equals; NaN is passed over. −1 where the largest is not finite, or there is none. Rows have unit stride.
struct ArgmaxArgs {
  Tensor x, indices;
};

}  // namespace megatron
