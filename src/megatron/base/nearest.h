#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// The candidates that `word` was most likely meant to be, nearest first; empty where none resembles it.
std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates,
                                 size_t most = 3);

// "did you mean 'a', 'b' or 'c'?", or "" where there are none.
std::string did_you_mean(std::span<const std::string> candidates);

}  // namespace megatron
