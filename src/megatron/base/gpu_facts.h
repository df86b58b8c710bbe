#pragma once

#include <cstdint>

namespace megatron {

// What kernels must know of a GPU to say what they take there; 0 is not known.
struct GpuFacts {
  int compute_capability = 0;  // 90 for Hopper
  int64_t shared_memory = 0;   // bytes that a block may have

  bool operator==(const GpuFacts&) const = default;
};

}  // namespace megatron
