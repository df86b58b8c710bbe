#pragma once

#include "megatron/autotune/cost/layer_cost.h"

namespace megatron::autotune {

// Bytes on the fullest rank.
struct MemoryUse {
  double weights = 0, gradients = 0, optimizer = 0, activations = 0, logits = 0, other = 0;
  double total() const { return weights + gradients + optimizer + activations + logits + other; }
};

// Parameters on one rank of a stage with so many layers, apart from and of the experts.
struct LocalParams {
  double dense = 0, experts = 0;
  double total() const { return dense + experts; }
};
LocalParams local_params(const ModelShape& model, const ParallelPlan& plan, double layers, bool embedding,
                         bool head);

// Layers of the stages. Where they do not divide, those before the last get one more, since the first stages
// hold the most micro-batches.
struct LayerSplit {
  double first = 0, larger = 0, last = 0;
  int first_larger = 0;  // stage
};
LayerSplit layer_split(const ModelShape& model, const ParallelPlan& plan);

MemoryUse memory_use(const CostInputs& in, const ParallelPlan& plan);

// Activation bytes that one micro-batch leaves on the first stage.
double kept_activation_bytes(const CostInputs& in, const ParallelPlan& plan);

// Whether it fits, with six hundredths of the device left free.
bool fits(const CostInputs& in, const MemoryUse& use);

}  // namespace megatron::autotune
