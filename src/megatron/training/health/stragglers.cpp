#include "megatron/training/health/stragglers.h"

#include <fmt/format.h>

#include <algorithm>

namespace megatron {
namespace {

// Ranks and their milliseconds, the fastest first.
using RankTimes = std::vector<std::pair<double, size_t>>;

RankTimes times_of(const TimerTable& table, std::initializer_list<std::string_view> names) {
  RankTimes times;
  for (size_t rank = 0; rank < table.seconds.size(); ++rank) {
    double sum = 0;
    for (size_t i = 0; i < table.timers.size(); ++i)
      if (std::find(names.begin(), names.end(), table.timers[i].name) != names.end())
        sum += table.seconds[rank][i];
    times.emplace_back(1e3 * sum, rank);
  }
  std::sort(times.begin(), times.end());
  return times;
}

template <class Range>
std::string list(const Range& range) {
  std::string text;
  for (const auto& [time, rank] : range)
    text += fmt::format("{}rank {} {:.2f}", text.empty() ? "" : ", ", rank, time);
  return text;
}

// "fastest rank 2 10.10, slowest rank 5 19.30, 1.8 x the median"
std::string extremes(const RankTimes& times, size_t count) {
  const size_t shown = std::min(count, times.size());
  const double median = times[times.size() / 2].first;
  return fmt::format("fastest {} | slowest {}{}", list(std::span(times).first(shown)),
                     list(std::span(times).last(shown)),
                     median > 0 ? fmt::format(" ({:.2f} x the median)", times.back().first / median) : "");
}

}  // namespace

std::string straggler_report(const TimerTable& table, int64_t count) {
  const RankTimes compute = times_of(table, {"forward-compute", "backward-compute"});
  if (compute.empty() || compute.back().first == 0) return "";
  const auto shown = static_cast<size_t>(count);
  return fmt::format(" stragglers | passes (ms): {} | data (ms): {} |", extremes(compute, shown),
                     extremes(times_of(table, {"batch-generator"}), shown));
}

}  // namespace megatron
