#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace megatron {

inline int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace megatron
