#include "megatron/datasets/random/numpy_math.h"

#include <algorithm>
#include <array>

namespace megatron {

double numpy_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) {
    double sum = 0;
    for (double value : values) sum += value;
    return sum;
  }
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  std::array<double, 8> part;
  std::copy_n(values.begin(), 8, part.begin());
  size_t i = 8;
  for (; i + 8 <= n; i += 8)
    for (size_t k = 0; k < 8; ++k) part[k] += values[i + k];
  double sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

std::vector<double> normalize_weights(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> result;
  for (double weight : weights) result.push_back(weight / sum);
  return result;
}

}  // namespace megatron
