#include "megatron/rl/environments/jsonl_environment.h"

#include <algorithm>

#include "megatron/base/refuse.h"
#include "megatron/rl/environments/math/answer_equality.h"
#include "megatron/rl/environments/math/final_answer.h"
#include "megatron/tokenizers/regex/regex.h"

namespace megatron::rl {
namespace {

constexpr std::string_view kBlank = " \t\n\r";

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

std::string_view without_margins(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) + 1 - first);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

}  // namespace

bool pattern_found(std::string_view pattern, std::string_view text, bool ignore_case) {
  const tokenizers::Regex regex((ignore_case ? "(?i)" : "") + std::string(pattern));
  try {
    return regex.find(text, 0).has_value();
  } catch (const Error&) {
    return false;
  }
}

AnswerRule parse_answer_rule(std::string_view name) {
  if (name == "exact") return AnswerRule::exact;
  if (name == "number") return AnswerRule::number;
  if (name == "math") return AnswerRule::math;
  if (name == "regex") return AnswerRule::regex;
  refuse("rule: '{}' is none of exact, number, math, regex", name);
}

std::vector<ChatMessage> prompt_messages(const Json& row, std::string_view key) {
  const Json* value = row.find(key);
  if (!value || !value->is_array()) return {};
  Json wrapped = Json::object();
  wrapped["messages"] = *value;
  return parse_messages(wrapped, fmt::format("'{}'", key));
}

std::string prompt_text(const Json& row, std::string_view key) {
  const std::vector<ChatMessage> messages = prompt_messages(row, key);
  if (messages.empty()) return text_of(row, key);
  std::string text;
  for (const ChatMessage& message : messages) text += (text.empty() ? "" : "\n") + message.content;
  return text;
}

std::string_view last_number(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_decimal(text[end - 1])) --end;
  size_t begin = end;
  // Digits, points and separators of thousands that stand between digits.
  while (begin > 0 && (is_decimal(text[begin - 1]) ||
                       ((text[begin - 1] == '.' || text[begin - 1] == ',') && begin < end &&
                        is_decimal(text[begin]) && begin > 1 && is_decimal(text[begin - 2]))))
    --begin;
  if (begin > 0 && begin < end && text[begin - 1] == '.') --begin;  // ".5"
  if (begin > 0 && text[begin - 1] == '-' && (begin == 1 || !is_decimal(text[begin - 2]))) --begin;
  return text.substr(begin, end - begin);
}

AnswerRule JsonlEnvironment::rule_of(const Json& row) const {
  const Json* own = row.find("rule");
  return own && own->is_string() ? parse_answer_rule(own->as_string()) : options_.rule;
}

std::vector<ChatMessage> JsonlEnvironment::messages(const Json& row) const {
  return prompt_messages(row, options_.prompt_key);
}

std::string JsonlEnvironment::prompt(const Json& row) const {
  const std::string answer = text_of(row, options_.answer_key);
  if (rule_of(row) == AnswerRule::regex) pattern_found(answer, "", options_.ignore_case);
  return prompt_text(row, options_.prompt_key);
}

double JsonlEnvironment::reward(const RolloutTask& task, const RolloutResponse& response) const {
  std::string_view answer = without_margins(response.text);
  if (options_.place != AnswerPlace::response) {
    const auto marked =
        options_.place == AnswerPlace::tagged ? last_tagged(response.text) : last_boxed(response.text);
    if (!marked) return options_.missing_reward;
    answer = marked->text;
  }
  const std::string expected = text_of(task.data, options_.answer_key);
  bool right = false;
  switch (rule_of(task.data)) {
    case AnswerRule::exact:
      right = options_.ignore_case ? lower(answer) == lower(without_margins(expected))
                                   : answer == without_margins(expected);
      break;
    case AnswerRule::number:
      if (options_.place == AnswerPlace::response) answer = last_number(answer);
      if (answer.empty()) return options_.missing_reward;
      right = answers_equal(expected, answer);
      break;
    case AnswerRule::math:
      right = answers_equal(expected, answer);
      break;
    case AnswerRule::regex:
      right = pattern_found(expected, answer, options_.ignore_case);
      break;
  }
  return right ? options_.reward : options_.wrong_reward;
}

}  // namespace megatron::rl
