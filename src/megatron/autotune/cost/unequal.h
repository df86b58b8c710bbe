#pragma once

#include <cstdint>

#include "megatron/autotune/cost/model_shape.h"
#include "megatron/autotune/cost/parallel_plan.h"

namespace megatron::autotune {

// What the fullest rank of a reduced replica holds of a layer: heads are shared whole.
double fullest_share(const ModelShape& model, const ParallelPlan& plan);

// Nonuniform tensor parallelism: the time of a micro-batch in a replica that lost tensor ranks, beside one
// that has all. Its fullest rank counts.
double reduced_slowdown(const ModelShape& model, const ParallelPlan& plan);

// Micro-batches of a whole and of a reduced replica with which the later of them ends first.
struct UnequalBatches {
  int64_t whole = 0, reduced = 0;
  double steps = 0;  // micro-batches of a whole replica that the iteration lasts
};
UnequalBatches unequal_batches(const ParallelPlan& plan, double slowdown);

}  // namespace megatron::autotune
