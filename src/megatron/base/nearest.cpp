#include "megatron/base/nearest.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace megatron {

namespace {

// Insertions, deletions, substitutions and swaps of neighbours, with '-' and '_' alike.
size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return x == y || ((x == '-' || x == '_') && (y == '-' || y == '_'));
  };
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

}  // namespace

std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates,
                                 size_t most) {
  if (word.empty()) return {};
  std::vector<std::pair<size_t, std::string>> scored;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    const bool close = distance <= std::max<size_t>(1, std::max(word.size(), candidate.size()) / 3);
    const bool part = word.size() >= 3 && candidate.find(word) != std::string::npos;
    if (close || part) scored.emplace_back(distance, candidate);
  }
  std::stable_sort(scored.begin(), scored.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(most, scored.size()); ++i) names.push_back(scored[i].second);
  return names;
}

std::string did_you_mean(std::span<const std::string> candidates) {
  if (candidates.empty()) return "";
  std::string list;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i > 0) list += i + 1 == candidates.size() ? " or " : ", ";
    list += fmt::format("'{}'", candidates[i]);
  }
  return fmt::format("did you mean {}?", list);
}

}  // namespace megatron
