#pragma once

#include "megatron/base/dtype.h"
#include "megatron/config/config.h"
#include "megatron/optimizer/schedule.h"

// What a configuration means for the parts of a run.
namespace megatron {

DType model_dtype(const Config& config);  // of weights and activations
// In samples; `iterations` are those of the whole run.
LearningRateSchedule learning_rate_schedule(const Config& config, int64_t iterations);

}  // namespace megatron
