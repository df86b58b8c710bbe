#include "megatron/rl/environments/make_environment.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "megatron/base/nearest.h"
#include "megatron/base/refuse.h"
#include "megatron/rl/environments/countdown.h"
#include "megatron/rl/environments/jsonl_environment.h"
#include "megatron/rl/environments/math_environment.h"
#include "megatron/rl/environments/program.h"
#include "megatron/rl/environments/program_environment.h"

namespace megatron::rl {
namespace {

using Made = std::shared_ptr<const Environment>;
constexpr int64_t kFirstRows = 327680;  // of large datasets, trained on as Megatron-LM does

struct MathKind {
  std::string_view agent_type, name, problem, answer;
  AnswerFormat format = AnswerFormat::tagged;
  bool drop_request = false, evaluation_only = false;
  int64_t training_rows = 0;
};
constexpr std::array<MathKind, 6> kMathKinds = {{
    {"MathAgent", "math", "problem", "answer|expected_answer|solution"},
    {"GSM8KAgent", "gsm8k", "question", "answer", AnswerFormat::boxed},
    {"OpenMathInstructAgent", "openmath_instruct", "problem", "expected_answer", AnswerFormat::tagged, false,
     false, kFirstRows},
    {"BigMathAgent", "bigmath", "problem", "answer"},
    {"DAPOAgent", "dapo", "prompt.0.content|problem", "reward_model.ground_truth|answer",
     AnswerFormat::tagged, true},
    {"AIMEAgent", "aime", "Problem|problem", "Answer|answer", AnswerFormat::tagged, false, true},
}};

// What every environment has: a name, rows, an optional system message.
struct Common {
  std::string name, system_prompt;
  std::optional<TaskRows> rows;
};

Common read_common(EnvironmentArguments& arguments, std::string_view name, const SplitDefaults& split) {
  return {arguments.text("env_id", name), arguments.text("system_prompt", ""),
          open_task_rows(arguments, split)};
}

Made make_countdown(EnvironmentArguments& arguments, bool evaluation_only) {
  Common common = read_common(arguments, "countdown", {evaluation_only, kFirstRows});
  const double format_reward = arguments.number("format_reward", 0.1);
  arguments.reject_unknown();
  if (!common.rows) return nullptr;
  return std::make_shared<CountdownEnvironment>(common.name, *common.rows, common.system_prompt,
                                                format_reward);
}

Made make_math(const MathKind& kind, EnvironmentArguments& arguments, bool evaluation_only) {
  if (kind.evaluation_only && !evaluation_only)
    arguments.reject("{} has no tasks for training; set 'evaluation_only: true'", kind.agent_type);
  Common common =
      read_common(arguments, kind.name, {evaluation_only || kind.evaluation_only, kind.training_rows});
  const MathKeys keys = {arguments.text("problem_key", kind.problem),
                         arguments.text("answer_key", kind.answer), kind.drop_request};
  const bool boxed_first = kind.format == AnswerFormat::boxed;
  const std::vector<std::string> formats =
      boxed_first ? std::vector<std::string>{"boxed", "tagged"} : std::vector<std::string>{"tagged", "boxed"};
  const AnswerFormat format =
      arguments.choice("answer_format", formats) == "boxed" ? AnswerFormat::boxed : AnswerFormat::tagged;
  const MathRewards rewards = {arguments.number("format_reward", 0), arguments.number("negative_reward", 0),
                               arguments.number("partial_end_reward", 0)};
  arguments.reject_unknown();
  if (!common.rows) return nullptr;
  return std::make_shared<MathEnvironment>(common.name, *common.rows, common.system_prompt, keys, format,
                                           rewards);
}

Made make_jsonl(EnvironmentArguments& arguments, bool evaluation_only) {
  Common common = read_common(arguments, "jsonl", {evaluation_only});
  JsonlOptions options;
  options.prompt_key = arguments.text("prompt_key", options.prompt_key);
  options.answer_key = arguments.text("answer_key", options.answer_key);
  options.rule = parse_answer_rule(arguments.choice("rule", {"exact", "number", "math", "regex"}));
  const std::string place = arguments.choice("answer_format", {"response", "tagged", "boxed"});
  options.place = place == "tagged"  ? AnswerPlace::tagged
                  : place == "boxed" ? AnswerPlace::boxed
                                     : AnswerPlace::response;
  options.ignore_case = arguments.flag("ignore_case", false);
  options.reward = arguments.number("reward", options.reward);
  options.wrong_reward = arguments.number("wrong_reward", options.wrong_reward);
  options.missing_reward = arguments.number("missing_reward", options.missing_reward);
  arguments.reject_unknown();
  if (!common.rows) return nullptr;
  return std::make_shared<JsonlEnvironment>(common.name, *common.rows, common.system_prompt, options);
}

std::vector<std::string> read_command(EnvironmentArguments& arguments) {
  const Json* value = arguments.value("command");
  if (value && value->is_string()) return {"/bin/sh", "-c", value->as_string()};
  std::vector<std::string> words;
  if (value && value->is_array())
    for (const Json& word : value->as_array())
      if (word.is_string()) words.push_back(word.as_string());
  if (words.empty() || words.size() != value->size()) {
    arguments.reject("command: expected a list of words such as [python3, reward.py], or a shell's line");
    return {};
  }
  if (find_program(words[0]).empty())
    arguments.reject("command: there is no program '{}'; install it or give its path", words[0]);
  return words;
}

Made make_program(EnvironmentArguments& arguments, bool evaluation_only) {
  Common common = read_common(arguments, "program", {evaluation_only});
  ProgramOptions options;
  options.prompt_key = arguments.text("prompt_key", options.prompt_key);
  options.command = read_command(arguments);
  const double seconds = arguments.number("time_limit", 10);
  if (seconds >= 0.001 && seconds <= 86400) {
    options.time_limit = std::chrono::milliseconds(std::llround(seconds * 1000));
  } else {
    arguments.reject("time_limit: expected seconds from 0.001 to 86400, got {}", seconds);
  }
  if (arguments.has("failure_reward")) options.failure_reward = arguments.number("failure_reward", 0);
  arguments.reject_unknown();
  if (!common.rows || options.command.empty()) return nullptr;
  return std::make_shared<ProgramEnvironment>(common.name, *common.rows, common.system_prompt, options);
}

}  // namespace

Made make_environment(std::string_view agent_type, EnvironmentArguments& arguments, bool evaluation_only) {
  if (agent_type == "CountdownAgent") return make_countdown(arguments, evaluation_only);
  if (agent_type == "JsonlAgent") return make_jsonl(arguments, evaluation_only);
  if (agent_type == "ProgramAgent") return make_program(arguments, evaluation_only);
  for (const MathKind& kind : kMathKinds)
    if (agent_type == kind.agent_type) return make_math(kind, arguments, evaluation_only);
  if (agent_type == "RemoteAgent" || agent_type == "NemoGymAgent" || agent_type == "AceMathAgent") {
    arguments.reject(
        "agent_type: {} runs Python; use ProgramAgent, whose 'command' is given each answer as JSON and "
        "prints "
        "its reward",
        agent_type);
    return nullptr;
  }
  std::vector<std::string> known = {"CountdownAgent", "JsonlAgent", "ProgramAgent"};
  for (const MathKind& kind : kMathKinds) known.emplace_back(kind.agent_type);
  const auto candidates = nearest(agent_type, known);
  arguments.reject(
      "agent_type: unknown type '{}'; {}", agent_type,
      candidates.empty() ? fmt::format("known are {}", fmt::join(known, ", ")) : did_you_mean(candidates));
  return nullptr;
}

}  // namespace megatron::rl
