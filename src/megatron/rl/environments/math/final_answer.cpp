#include "megatron/rl/environments/math/final_answer.h"

#include <vector>

namespace megatron::rl {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

}  // namespace

std::optional<FinalAnswer> last_tagged(std::string_view response) {
  constexpr std::string_view kOpen = "<answer>", kClose = "</answer>";
  const size_t end = response.rfind(kClose);
  if (end == std::string_view::npos) return {};
  const size_t begin = response.substr(0, end).rfind(kOpen);
  if (begin == std::string_view::npos) return {};
  return FinalAnswer{trim(response.substr(begin + kOpen.size(), end - begin - kOpen.size())),
                     trim(response.substr(end + kClose.size())).empty()};
}

std::optional<FinalAnswer> last_boxed(std::string_view response) {
  constexpr std::string_view kOpen = "\\boxed{";
  std::vector<size_t> open;  // where what braces enclose begins
  std::optional<FinalAnswer> last;
  for (size_t at = 0; at < response.size(); ++at) {
    if (response[at] == '{') {
      open.push_back(at + 1);
    } else if (response[at] == '}' && !open.empty()) {
      const size_t begin = open.back();
      open.pop_back();
      if (response.substr(0, begin).ends_with(kOpen))
        last = {trim(response.substr(begin, at - begin)), trim(response.substr(at + 1)).empty()};
    } else if (response[at] == '\\' && !response.substr(at).starts_with(kOpen)) {
      ++at;  // \{ and \} are characters
    }
  }
  return last;
}

}  // namespace megatron::rl
