#pragma once

#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// What the engine itself costs: ops on one element, in nanoseconds each, over chains of 1000.
struct Overhead {
  std::string op;
  double forward_ns;   // without a tape
  double recorded_ns;  // run and recorded
  double backward_ns;  // its backward pass alone
};

std::vector<Overhead> measure_overhead(RankContext& ctx, int64_t repeat);

}  // namespace megatron
