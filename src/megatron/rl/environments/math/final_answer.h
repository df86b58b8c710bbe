#pragma once

#include <optional>
#include <string_view>

namespace megatron::rl {

// The answer of a response, and whether anything but white space stands behind its mark.
struct FinalAnswer {
  std::string_view text;
  bool at_end = false;
};

// What stands in the last <answer>…</answer>; without white space around it.
std::optional<FinalAnswer> last_tagged(std::string_view response);
// What stands in the last \boxed{…} whose braces match; of boxes within boxes, the outer one.
std::optional<FinalAnswer> last_boxed(std::string_view response);

}  // namespace megatron::rl
