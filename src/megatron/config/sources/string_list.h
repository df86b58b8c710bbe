#pragma once

#include <algorithm>
#include <string_view>

namespace megatron {

// Whether `holds` is true of any of `words`, which blanks separate, as tables of settings list keys and
// flags.
template <class Predicate>
constexpr bool any_word(std::string_view words, Predicate&& holds) {
  while (!words.empty()) {
    const size_t blank = std::min(words.find(' '), words.size());
    if (holds(words.substr(0, blank))) return true;
    words.remove_prefix(std::min(blank + 1, words.size()));
  }
  return false;
}

template <class Action>
constexpr void for_each_word(std::string_view words, Action&& act) {
  any_word(words, [&](std::string_view word) { return act(word), false; });
}

// Whether one of `words` is the name, or begins like it and ends with a star.
constexpr bool covers_name(std::string_view words, std::string_view name) {
  return any_word(words, [&](std::string_view word) {
    return word.ends_with('*') ? name.starts_with(word.substr(0, word.size() - 1)) : word == name;
  });
}

constexpr bool holds_word(std::string_view words, std::string_view word) {
  return any_word(words, [&](std::string_view own) { return own == word; });
}

}  // namespace megatron
