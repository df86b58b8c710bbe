#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron::limits {

inline bool is_aligned(const Tensor& tensor, size_t bytes = 16) {
  return !tensor.defined() || reinterpret_cast<uintptr_t>(tensor.raw()) % bytes == 0;
}

// Whether every row (last dimension) begins at a multiple of 16 bytes; an undefined tensor has no other rows.
inline bool has_aligned_rows(const Tensor& tensor) {
  if (!is_aligned(tensor)) return false;
  if (!tensor.defined()) return true;
  for (int d = 0; d + 1 < tensor.rank(); ++d)
    if (tensor.size(d) > 1 && tensor.stride(d) * static_cast<int64_t>(size_of(tensor.dtype())) % 16 != 0)
      return false;
  return true;
}

}  // namespace megatron::limits
