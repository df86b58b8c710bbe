#pragma once

#include <algorithm>
#include <vector>

namespace megatron {

// The middle of the values, or the mean of the two in the middle; 0 where there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace megatron
