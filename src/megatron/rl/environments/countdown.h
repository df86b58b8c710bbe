#pragma once

#include "megatron/rl/environments/row_environment.h"

namespace megatron::rl {

// Rows {"target": 24, "nums": [4, 6, 1]}: the numbers are to be joined, each once, by + - * / to the target.
// An answer in <answer> tags gets 1 where it is right and `format_reward` else; without one, the reward is 0.
class CountdownEnvironment final : public RowEnvironment {
 public:
  CountdownEnvironment(std::string name, TaskRows rows, std::string system_prompt, double format_reward)
      : RowEnvironment(std::move(name), std::move(rows), std::move(system_prompt)),
        format_reward_(format_reward) {}

  double reward(const RolloutTask& task, const RolloutResponse& response) const override;

 protected:
  std::string prompt(const Json& row) const override;

 private:
  double format_reward_;
};

// Whether a formula of integers, + - * / and parentheses has this value, exactly, and uses exactly these
// numbers.
bool solves_countdown(std::string_view formula, std::vector<int64_t> numbers, int64_t target);

}  // namespace megatron::rl
