#pragma once

#include "megatron/base/dtype.h"
#include "megatron/config/config.h"
#include "megatron/optimizer/optimizer.h"
#include "megatron/optimizer/schedule.h"

// What a configuration means for the parts of a run.
namespace megatron {

DType model_dtype(const Config& config);  // of weights and activations
// In samples; `iterations` are those of the whole run.
LearningRateSchedule learning_rate_schedule(const Config& config, int64_t iterations);

// All that changes between the steps of a run, as a function of the samples before a step.
struct RateSchedule {
  LearningRateSchedule lr;
  std::optional<LearningRateSchedule> decoupled_lr;  // of the embedding and the output layer
  WeightDecaySchedule weight_decay;

  Rates at(int64_t samples) const;
};
RateSchedule rate_schedule(const Config& config, int64_t iterations);

}  // namespace megatron
