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

// What the host does for one training step of a model of 24 layers (GPT, 1024 wide, bf16, one micro-batch,
// one rank), whose kernels do nothing: forward and backward passes, reductions and update, in milliseconds.
struct HostStep {
  double least_ms, median_ms;
};
HostStep measure_host_step(int64_t repeat);

std::vector<Overhead> measure_overhead(RankContext& ctx, int64_t repeat);

}  // namespace megatron
