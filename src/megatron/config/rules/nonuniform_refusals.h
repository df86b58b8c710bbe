#pragma once

#include <vector>

#include "megatron/config/config.h"

namespace megatron {

// A setting that replicas of different tensor-parallel sizes cannot have, and what to do about it.
struct NonuniformRefusal {
  const char* key;
  const char* fix;
};

// All of a configuration that a rule may name.
std::vector<NonuniformRefusal> nonuniform_refusals(const Config& config);

// Whether replicas of this configuration can go on after they lost some of their ranks.
bool may_lose_ranks(const Config& config);

}  // namespace megatron
