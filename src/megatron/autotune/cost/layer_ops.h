#pragma once

#include <string>
#include <vector>

#include "megatron/autotune/cost/layer_cost.h"

namespace megatron::autotune {

// One kernel of a micro-batch's pass through a layer or the head, on one rank.
struct OpPrice {
  std::string name;  // "fc1 wgrad"
  bool gemm = false;
  double flops = 0, bytes = 0, seconds = 0;
  int64_t m = 0, n = 0, k = 0, groups = 1;  // of GEMMs
};

// The large kernels of an average layer and of the head: what a roofline shows and a benchmark measures.
std::vector<OpPrice> layer_ops(const CostInputs& in, const ParallelPlan& plan);

}  // namespace megatron::autotune
