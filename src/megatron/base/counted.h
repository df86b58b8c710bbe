#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

namespace megatron {

// "1 rank", "4 ranks", "2 processes": a count and its noun, as messages tell them.
template <std::integral Count>
std::string counted(Count count, std::string_view noun) {
  const bool sibilant = noun.ends_with("s") || noun.ends_with("ch") || noun.ends_with("x");
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : sibilant ? "es" : "s");
}

}  // namespace megatron
