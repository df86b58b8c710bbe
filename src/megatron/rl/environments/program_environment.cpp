#include "megatron/rl/environments/program_environment.h"

#include <charconv>
#include <cmath>

#include "megatron/rl/environments/jsonl_environment.h"
#include "megatron/rl/environments/program.h"

namespace megatron::rl {
namespace {

std::string_view last_line(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  const size_t newline = text.rfind('\n');
  if (newline != std::string_view::npos) text.remove_prefix(newline + 1);
  text.remove_prefix(text.find_first_not_of(" \t\r"));
  return text;
}

std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

Json request(const RolloutTask& task, const RolloutResponse& response) {
  Json messages = Json::array();
  for (const ChatMessage& message : task.messages)
    messages.push_back(Json::Object{{"role", message.role}, {"content", message.content}});
  return Json::Object{{"environment", task.environment},
                      {"index", task.index},
                      {"prompt", task.prompt},
                      {"messages", std::move(messages)},
                      {"response", response.text},
                      {"stopped", response.stopped},
                      {"data", task.data}};
}

// What went wrong, or "".
std::string problem_of(const ProgramEnd& end, const ProgramOptions& options) {
  if (end.timed_out)
    return fmt::format("took more than {} s", static_cast<double>(options.time_limit.count()) / 1000);
  if (end.signal != 0) return fmt::format("was ended by signal {}", end.signal);
  if (end.code != 0) return fmt::format("ended with exit code {}", end.code);
  if (!parse_number(last_line(end.output)))
    return fmt::format("printed no number in its last line '{}'", last_line(end.output).substr(0, 80));
  return "";
}

}  // namespace

std::vector<ChatMessage> ProgramEnvironment::messages(const Json& row) const {
  return prompt_messages(row, options_.prompt_key);
}

std::string ProgramEnvironment::prompt(const Json& row) const {
  return prompt_text(row, options_.prompt_key);
}

double ProgramEnvironment::reward(const RolloutTask& task, const RolloutResponse& response) const {
  const ProgramEnd end =
      run_program(options_.command, request(task, response).dump() + "\n", options_.time_limit);
  const std::string problem = problem_of(end, options_);
  if (problem.empty()) return *parse_number(last_line(end.output));
  if (options_.failure_reward) return *options_.failure_reward;
  const std::string_view errors = last_line(end.errors);
  fail("{}: the program {} {} on task {}{}{}; mend it, or give such answers a 'failure_reward'", name(),
       options_.command[0], problem, task.index, errors.empty() ? "" : ": ", errors.substr(0, 300));
}

}  // namespace megatron::rl
