#pragma once

#include "megatron/base/json.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {

// A schedule as checkpoints keep it: Megatron-LM's names of opt_param_scheduler, steps counted in samples.
Json schedule_state(const RateSchedule& schedule);

// What the state of a checkpoint changes of a schedule: the keys that it has count, ours or Megatron-LM's.
// A ConfigError names `origin` where a value makes no sense.
RateSchedule schedule_from_state(const Json& state, RateSchedule schedule, const std::string& origin);

// How two schedules differ where that changes a learning rate or weight decay: "max_lr 0.001 (the checkpoint
// has 0.002), …". Empty where it changes none.
std::string schedule_difference(const RateSchedule& ours, const RateSchedule& checkpoint);

}  // namespace megatron
