#pragma once

#include <cstdint>

namespace megatron {

// What a configuration must know of a GPU to say whether it can run there.
struct GpuFacts {
  int compute_capability = 0;  // 90 for Hopper
  int64_t shared_memory = 0;   // bytes that a block may have
};

}  // namespace megatron
