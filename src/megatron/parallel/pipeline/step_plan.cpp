#include "megatron/parallel/pipeline/step_plan.h"

namespace megatron {

StepPlan plan_step(const PipelineShape& shape, int rank) {
  return {shape, std::move(schedules(shape)[static_cast<size_t>(rank)])};
}

const StepPlan& StepPlans::of(const PipelineShape& shape) {
  auto found = plans_.find(shape);
  if (found == plans_.end()) found = plans_.emplace(shape, plan_step(shape, rank_)).first;
  return found->second;
}

}  // namespace megatron
