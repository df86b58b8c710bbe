#pragma once

#include "megatron/rl/environments/environment_set.h"
#include "megatron/training/run/live_data.h"

namespace megatron::rl {

// The data of reinforcement learning: groups of answers of the model that learns, rewarded by environments.
// A collection is learned from --grpo-iterations times, a global batch of it in each iteration. Without
// `environments`, those of --langrl-env-config.
LiveDataMaker rollout_data(std::shared_ptr<const EnvironmentSet> environments = nullptr);

}  // namespace megatron::rl
