#include "megatron/config/problems.h"

#include <algorithm>

namespace megatron {
namespace {

std::string all_lines(const std::vector<Problem>& problems) {
  std::string text = problems.size() == 1
                         ? "the configuration was refused:"
                         : fmt::format("the configuration was refused, {} problems:", problems.size());
  for (const Problem& problem : problems) text += "\n  " + problem.text();
  return text;
}

}  // namespace

std::string Problem::text() const {
  std::string text = setting;
  if (!value.empty()) text += " = " + value;
  if (!origin.empty() && origin != setting) text += " (" + origin + ")";
  text += ": " + reason;
  if (!fix.empty()) text += "; " + fix;
  return text;
}

int Refused::exit_code() const {
  const bool usage =
      std::all_of(problems_.begin(), problems_.end(), [](const Problem& problem) { return problem.usage; });
  return usage ? UsageError("").exit_code() : ConfigError::exit_code();
}

Refused::Refused(std::vector<Problem> problems)
    : ConfigError(all_lines(problems)), problems_(std::move(problems)) {}

}  // namespace megatron
