#pragma once

#include <string_view>
#include <vector>

#include "megatron/tokenizers/chat/budget.h"

namespace megatron::chat {

// str.split and rsplit of Python: at `separator`, or at runs of whitespace where it is null; at most `limit`
// times unless that is negative. The parts point into `bytes`.
std::vector<std::string_view> split(Budget& budget, std::string_view bytes, const std::string_view* separator,
                                    int64_t limit, bool from_end);

// str.splitlines of Python.
std::vector<std::string_view> split_lines(Budget& budget, std::string_view bytes, bool keep_ends);

}  // namespace megatron::chat
