#pragma once

#include <span>
#include <vector>

namespace megatron {

// numpy.sum of float64, with the same roundings: eight partial sums a block, blocks joined in a tree.
double numpy_sum(std::span<const double> values);
// Weights divided by their sum.
std::vector<double> normalize_weights(std::span<const double> weights);

}  // namespace megatron
