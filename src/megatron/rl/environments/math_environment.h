#pragma once

#include "megatron/rl/environments/row_environment.h"

namespace megatron::rl {

// Where a problem and its answer stand in a row: keys, with a dot before those of objects within, and with |
// before one that serves where the first is missing.
struct MathKeys {
  std::string problem = "problem", answer = "answer";
  bool drop_request = false;  // paragraphs of the problem that ask for "Answer:" are left out
};

enum class AnswerFormat { tagged, boxed };

struct MathRewards {
  double format = 0;       // a wrong answer, or a right one that the limit of tokens cut off
  double negative = 0;     // no answer in the format
  double partial_end = 0;  // a right answer with something behind it
};

// Problems with one answer, expected in <answer> tags or \boxed{} at the end of the response. A right answer
// gets 1. Both formats are read, whichever the prompt asks for.
class MathEnvironment final : public RowEnvironment {
 public:
  MathEnvironment(std::string name, TaskRows rows, std::string system_prompt, MathKeys keys,
                  AnswerFormat format, MathRewards rewards)
      : RowEnvironment(std::move(name), std::move(rows), std::move(system_prompt)),
        keys_(std::move(keys)),
        format_(format),
        rewards_(rewards) {}

  double reward(const RolloutTask& task, const RolloutResponse& response) const override;

 protected:
  std::string prompt(const Json& row) const override;

 private:
  MathKeys keys_;
  AnswerFormat format_;
  MathRewards rewards_;
};

// The answer within a solution: behind its last "####" (GSM8K), in its last \boxed{} (MATH), or all of it.
std::string expected_answer(const std::string& solution);

}  // namespace megatron::rl
