#include "megatron/rl/environments/math_environment.h"

#include <algorithm>

#include "megatron/rl/environments/math/answer_equality.h"
#include "megatron/rl/environments/math/final_answer.h"

namespace megatron::rl {
namespace {

// The object that holds the last key of "extra.answer" or "prompt.0.content", of which `path` then is that
// key; or null.
const Json* holder_of(const Json& row, std::string_view& path) {
  const Json* at = &row;
  for (size_t dot = path.find('.'); at && dot != std::string_view::npos; dot = path.find('.')) {
    const std::string_view key = path.substr(0, dot);
    if (at->is_array()) {
      at = key == "0" && at->size() > 0 ? &(*at)[size_t{0}] : nullptr;
    } else {
      at = at->is_object() ? at->find(key) : nullptr;
    }
    path.remove_prefix(dot + 1);
  }
  return at && at->is_object() && at->contains(path) ? at : nullptr;
}

std::string text_at(const Json& row, std::string_view paths) {
  for (std::string_view rest = paths; !rest.empty();) {
    std::string_view path = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(path.size() + 1, rest.size()));
    if (const Json* holder = holder_of(row, path)) return text_of(*holder, path);
  }
  fail("the row has no '{}'", paths);
}

std::string without_request(const std::string& problem) {
  std::string kept = problem;
  if (const size_t end = kept.find("\n\n");
      end != std::string::npos && kept.substr(0, end).find("Answer:") != std::string::npos)
    kept.erase(0, end + 2);
  if (const size_t begin = kept.rfind('\n');
      begin != std::string::npos && kept.find("Answer:", begin) != std::string::npos)
    kept.erase(begin);
  return kept.substr(0, kept.find_last_not_of(" \n\t") + 1);
}

}  // namespace

std::string expected_answer(const std::string& solution) {
  if (const size_t mark = solution.rfind("####"); mark != std::string::npos) {
    const size_t begin = solution.find_first_not_of(" \t", mark + 4);
    return begin == std::string::npos ? "" : solution.substr(begin);
  }
  if (const auto boxed = last_boxed(solution)) return std::string(boxed->text);
  return solution;
}

std::string MathEnvironment::prompt(const Json& row) const {
  text_at(row, keys_.answer);
  const std::string_view request =
      format_ == AnswerFormat::boxed
          ? "Think step by step, and end with the answer in \\boxed{}, as in \\boxed{\\frac{3}{4}}."
          : "Think step by step, and end with the answer between <answer> and </answer>, without an equals "
            "sign, as in <answer>\\frac{3}{4}</answer>.";
  const std::string problem = text_at(row, keys_.problem);
  return fmt::format("{}\n{}", keys_.drop_request ? without_request(problem) : problem, request);
}

double MathEnvironment::reward(const RolloutTask& task, const RolloutResponse& response) const {
  auto answer = last_tagged(response.text);
  if (!answer) answer = last_boxed(response.text);
  if (!answer) return rewards_.negative;
  if (!answers_equal(expected_answer(text_at(task.data, keys_.answer)), answer->text)) return rewards_.format;
  if (!response.stopped) return rewards_.format;
  return answer->at_end ? 1.0 : rewards_.partial_end;
}

}  // namespace megatron::rl
