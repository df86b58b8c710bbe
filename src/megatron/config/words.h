#pragma once

#include <algorithm>
#include <string_view>

namespace megatron {

// Whether `word` is one of `words`, which blanks separate, as tables of settings list keys and flags.
constexpr bool holds_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const size_t blank = std::min(words.find(' '), words.size());
    if (words.substr(0, blank) == word) return true;
    words.remove_prefix(std::min(blank + 1, words.size()));
  }
  return false;
}

}  // namespace megatron
