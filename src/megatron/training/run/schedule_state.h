#pragma once

#include "megatron/base/json.h"
#include "megatron/config/schema/optimizer_config.h"
#include "megatron/optimizer/schedule.h"

namespace megatron {

// A schedule as checkpoints keep it: Megatron-LM's names of opt_param_scheduler, steps counted in samples.
Json schedule_state(const LearningRateSchedule& schedule);

// What the state of a checkpoint changes of a schedule: the keys that it has count, ours or Megatron-LM's.
// A ConfigError names `origin` where a value makes no sense.
LearningRateSchedule schedule_from_state(const Json& state, LearningRateSchedule schedule,
                                         const std::string& origin);

// How two schedules differ where that changes a learning rate: "max_lr 0.001 (the checkpoint has 0.002), …".
// Empty where it changes none.
std::string schedule_difference(const LearningRateSchedule& ours, const LearningRateSchedule& checkpoint);

}  // namespace megatron
