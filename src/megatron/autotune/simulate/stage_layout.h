#pragma once

#include <span>
#include <vector>

#include "megatron/autotune/cost/cost_model.h"

namespace megatron::autotune {

// What each layer of the model costs, one micro-batch through each: models with leading dense layers or a
// pattern of blocks have several kinds.
std::vector<PassPair> layer_costs(const CostInputs& in, const ParallelPlan& plan);

// Contiguous parts of a row of layers.
struct LayoutProblem {
  std::vector<double> seconds, bytes;          // of each layer
  double first_seconds = 0, last_seconds = 0;  // more on the first and the last stage
  double first_bytes = 0, last_bytes = 0;
  std::vector<double> held;  // micro-batches that each stage holds at once; its layers' bytes count so often
  double limit = 0;          // bytes of a stage; 0: any
};

// How many layers each stage gets so that the slowest takes as little time as can be, within the limit of
// bytes: dynamic programming over layers and stages. Among equals the first stages get fewer. Empty where no
// division fits or there are fewer layers than stages.
std::vector<int> best_layout(const LayoutProblem& problem, int stages);

// The layout of a plan without interleaving, by its layers' prices; empty where equal layers make
// LayerSplit's the best.
std::vector<int> best_stage_layers(const CostInputs& in, const ParallelPlan& plan);

}  // namespace megatron::autotune
