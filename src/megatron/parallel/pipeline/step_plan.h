#pragma once

#include <map>

#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// One rank's list of steps of a schedule.
struct StepPlan {
  PipelineShape shape;
  std::vector<Step> steps;
};
StepPlan plan_step(const PipelineShape& shape, int rank);

// The plans of one pipeline rank, each made once: a schedule costs all ranks' lists.
class StepPlans {
 public:
  explicit StepPlans(int rank) : rank_(rank) {}
  const StepPlan& of(const PipelineShape& shape);  // stays where it is

 private:
  int rank_;
  std::map<PipelineShape, StepPlan> plans_;
};

}  // namespace megatron
