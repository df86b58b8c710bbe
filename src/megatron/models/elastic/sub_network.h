#pragma once

#include <array>
#include <string>
#include <vector>

#include "megatron/base/shape.h"
#include "megatron/config/resolve/elastic_widths.h"

namespace megatron {

// A sub-network by itself, as an ordinary model: its sizes by axis, 0 where the model has none.
using SubNetworkSizes = std::array<int64_t, kElasticAxes>;
ModelConfig sub_network(const ModelConfig& model, const SubNetworkSizes& sizes);

// Which of a parameter's elements it has: of each dimension, the indices in the whole model's.
std::vector<std::vector<int64_t>> sub_network_indices(const std::string& name, const Shape& shape,
                                                      const ModelConfig& model, const SubNetworkSizes& sizes);

}  // namespace megatron
