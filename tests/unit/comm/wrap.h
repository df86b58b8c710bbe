#pragma once

#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron::testing {

// The values as a tensor that lies where they do.
template <class T>
Tensor wrap(std::vector<T>& values) {
  return Tensor::wrap(values.data(), {static_cast<int64_t>(values.size())}, dtype_of<T>());
}

}  // namespace megatron::testing
