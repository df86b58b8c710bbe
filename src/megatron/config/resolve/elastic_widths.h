#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "megatron/config/config.h"

namespace megatron {

// What a sub-network may have less of.
enum ElasticAxis : size_t { kStream, kFfn, kHeads, kExperts, kElasticAxes };

// One of them: what the model has, and the sizes that the settings name.
struct ElasticSizes {
  std::string_view list, shares, whole;  // names of settings
  int64_t full = 0;                      // 0: the model has none
  std::vector<int64_t> given;            // as they were given; the whole model's where they were not
};

std::array<ElasticSizes, kElasticAxes> elastic_sizes(const Config& config);

}  // namespace megatron
