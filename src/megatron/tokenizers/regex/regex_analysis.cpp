#include "megatron/tokenizers/regex/regex_analysis.h"

namespace megatron::tokenizers {

bool can_be_empty(std::span<const RegexStep> body) {
  std::vector<bool> seen(body.size() + 1);
  std::vector<uint32_t> todo{0};
  while (!todo.empty()) {
    const uint32_t i = todo.back();
    todo.pop_back();
    if (seen[i]) continue;
    seen[i] = true;
    if (i == body.size()) return true;
    const RegexStep& step = body[i];
    switch (step.kind) {
      case RegexStep::match:
      case RegexStep::character:
        break;
      case RegexStep::repeat:
      case RegexStep::repeat_lazy:
      case RegexStep::repeat_own:
        if (step.min == 0) todo.push_back(i + 1);
        break;
      case RegexStep::split:
        todo.push_back(step.b);
        [[fallthrough]];
      case RegexStep::jump:
      case RegexStep::look_ahead:
      case RegexStep::not_ahead:
      case RegexStep::look_behind:
      case RegexStep::not_behind:
      case RegexStep::atomic:
        todo.push_back(step.a);
        break;
      default:
        todo.push_back(i + 1);
    }
  }
  return false;
}

void find_first(RegexProgram& program) {
  const std::vector<RegexStep>& steps = program.steps;
  std::vector<bool> seen(steps.size());
  std::vector<uint32_t> todo{0};
  while (!todo.empty()) {
    const uint32_t i = todo.back();
    todo.pop_back();
    if (seen[i]) continue;
    seen[i] = true;
    const RegexStep& step = steps[i];
    switch (step.kind) {
      case RegexStep::character:
        program.first.add(program.sets[step.a]);
        break;
      case RegexStep::repeat:
      case RegexStep::repeat_lazy:
      case RegexStep::repeat_own:
        program.first.add(program.sets[step.a]);
        if (step.min == 0) todo.push_back(i + 1);
        break;
      case RegexStep::split:
        todo.push_back(step.a);
        todo.push_back(step.b);
        break;
      case RegexStep::jump:
        todo.push_back(step.a);
        break;
      default:
        program.any_first = true;
        return;
    }
  }
}

}  // namespace megatron::tokenizers
