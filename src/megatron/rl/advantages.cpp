#include "megatron/rl/advantages.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron::rl {

std::vector<double> group_advantages(std::span<const double> rewards,
                                     std::span<const int64_t> trained_tokens) {
  require(rewards.size() == trained_tokens.size(), "advantages: {} rewards of {} rollouts", rewards.size(),
          trained_tokens.size());
  double sum = 0, squares = 0;
  int64_t count = 0;
  for (size_t i = 0; i < rewards.size(); ++i)
    if (trained_tokens[i] > 0) sum += rewards[i], ++count;
  std::vector<double> advantages(rewards.size(), 0);
  if (count == 0) return advantages;
  double mean = sum / double(count);
  for (size_t i = 0; i < rewards.size(); ++i)
    if (trained_tokens[i] > 0) squares += (rewards[i] - mean) * (rewards[i] - mean);
  double deviation = std::sqrt(squares / double(count));
  for (size_t i = 0; i < rewards.size(); ++i)
    if (trained_tokens[i] > 0) advantages[i] = (rewards[i] - mean) / (1e-4 + deviation);
  return advantages;
}

bool same_rewards(std::span<const double> rewards) {
  return std::all_of(rewards.begin(), rewards.end(),
                     [&](double reward) { return reward == rewards.front(); });
}

}  // namespace megatron::rl
