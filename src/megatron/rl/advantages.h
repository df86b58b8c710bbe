#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron::rl {

// Advantages of the rollouts of one group, (reward - mean) / (1e-4 + std) with the population's standard
// deviation. Rollouts without a trained token are no part of the group: their advantage is 0.
std::vector<double> group_advantages(std::span<const double> rewards,
                                     std::span<const int64_t> trained_tokens);

// Whether every rollout of a group has the reward of the first, so that the group teaches nothing.
bool same_rewards(std::span<const double> rewards);

}  // namespace megatron::rl
