#pragma once

#include <chrono>
#include <optional>

#include "megatron/rl/environments/row_environment.h"

namespace megatron::rl {

struct ProgramOptions {
  std::string prompt_key = "prompt";
  std::vector<std::string> command;
  std::chrono::milliseconds time_limit{10000};
  // The reward where the program fails or takes too long; not given: such a failure ends the run.
  std::optional<double> failure_reward;
};

// Rows {"prompt": text or messages, …} whose answers a program rewards. It reads one JSON object
// {"environment", "index", "prompt", "messages", "response", "stopped", "data": the row} from its standard
// input, and prints the reward as the last line of its output.
class ProgramEnvironment final : public RowEnvironment {
 public:
  ProgramEnvironment(std::string name, TaskRows rows, std::string system_prompt, ProgramOptions options)
      : RowEnvironment(std::move(name), std::move(rows), std::move(system_prompt)),
        options_(std::move(options)) {}

  double reward(const RolloutTask& task, const RolloutResponse& response) const override;

 protected:
  std::string prompt(const Json& row) const override;
  std::vector<ChatMessage> messages(const Json& row) const override;

 private:
  ProgramOptions options_;
};

}  // namespace megatron::rl
