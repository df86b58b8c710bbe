#pragma once

#include <functional>

#include "megatron/autotune/search/search.h"
#include "megatron/base/json.h"

namespace megatron {

// What the trainer itself says of a plan: every rule of the configuration, and the bytes that one step on
// shapes alone allocates on its fullest rank.
struct CheckedPlan {
  std::string refused;  // why it cannot be run; "" where it can
  double bytes = 0;     // with room for allocator, CUDA context and NCCL
};
CheckedPlan check_plan(const Json& given, const autotune::CostInputs& in,
                       const autotune::Candidate& candidate);

// Checks the first `count` plans of a search, replaces those that are refused or do not fit by the next ones,
// and says what was left out and why. Stops after `seconds`.
std::map<std::string, int> check_best(const Json& given, const autotune::CostInputs& in, int count,
                                      double seconds, autotune::SearchResult& result,
                                      const std::function<void(int done)>& progress);

}  // namespace megatron
