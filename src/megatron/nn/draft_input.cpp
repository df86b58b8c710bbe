#include "megatron/nn/draft_input.h"

namespace megatron {

// How many numbers belong to the drafts, those, then the step.
std::vector<int64_t> DraftInput::packed() const {
  std::vector<int64_t> numbers = {0};
  for (size_t i = 0; i < rows.size(); ++i) {
    numbers.insert(numbers.end(), {rows[i], std::ssize(known[i])});
    numbers.insert(numbers.end(), known[i].begin(), known[i].end());
  }
  numbers[0] = std::ssize(numbers);
  const std::vector<int64_t> rest = step.packed();
  numbers.insert(numbers.end(), rest.begin(), rest.end());
  return numbers;
}

DraftInput DraftInput::unpacked(const std::vector<int64_t>& numbers) {
  DraftInput input;
  require(!numbers.empty() && numbers[0] >= 1 && numbers[0] <= std::ssize(numbers),
          "draft: {} numbers end too early", numbers.size());
  const auto end = numbers.begin() + numbers[0];
  for (auto at = numbers.begin() + 1; at != end;) {
    require(end - at >= 2 && at[1] >= 0 && end - at >= 2 + at[1], "draft: {} numbers end too early",
            numbers.size());
    input.rows.push_back(at[0]);
    input.known.emplace_back(at + 2, at + 2 + at[1]);
    at += 2 + at[1];
  }
  input.step = StepInput::unpacked({end, numbers.end()});
  return input;
}

}  // namespace megatron
