#pragma once

#include "megatron/rl/environments/row_environment.h"

namespace megatron::rl {

// What makes an answer right.
enum class AnswerRule {
  exact,   // the same text but for white space around it
  number,  // the same number, exactly; of a plain response its last number counts
  math,    // the same meaning (answers_equal)
  regex,   // the row's answer is a pattern that is found in it
};

enum class AnswerPlace { response, tagged, boxed };

struct JsonlOptions {
  std::string prompt_key = "prompt", answer_key = "answer";
  AnswerRule rule = AnswerRule::exact;  // a row's own "rule" goes before it
  AnswerPlace place = AnswerPlace::response;
  bool ignore_case = false;
  double reward = 1, wrong_reward = 0, missing_reward = 0;
};

AnswerRule parse_answer_rule(std::string_view name);

// Rows {"prompt": text or messages, "answer": text or number}.
class JsonlEnvironment final : public RowEnvironment {
 public:
  JsonlEnvironment(std::string name, TaskRows rows, std::string system_prompt, JsonlOptions options)
      : RowEnvironment(std::move(name), std::move(rows), std::move(system_prompt)),
        options_(std::move(options)) {}

  double reward(const RolloutTask& task, const RolloutResponse& response) const override;

 protected:
  std::string prompt(const Json& row) const override;
  std::vector<ChatMessage> messages(const Json& row) const override;

 private:
  AnswerRule rule_of(const Json& row) const;

  JsonlOptions options_;
};

// A row's prompt, which is a text or a list of messages, as text and as messages (none of a text).
std::string prompt_text(const Json& row, std::string_view key);
std::vector<ChatMessage> prompt_messages(const Json& row, std::string_view key);

// The last number of a text with its sign, separators of thousands and places, or "".
std::string_view last_number(std::string_view text);

// Whether a pattern (tokenizers::Regex) is found in a text. An Error where it is malformed. A text on
// which it backtracks without end does not have it.
bool pattern_found(std::string_view pattern, std::string_view text, bool ignore_case);

}  // namespace megatron::rl
