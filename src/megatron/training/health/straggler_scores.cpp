#include "megatron/training/health/straggler_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace megatron {
namespace {

constexpr double kShortest = 1e-6;  // seconds: below that nothing is compared
constexpr double kNotable = 0.02;   // of a step: what a slow rank costs at least

double score_of(double least, double own) { return own <= kShortest ? 1 : std::clamp(least / own, 0.0, 1.0); }

}  // namespace

std::vector<RankScore> straggler_scores(std::span<const StragglerSample> samples) {
  std::map<int64_t, double> fastest;
  double slowest = 0;
  for (const StragglerSample& sample : samples) {
    const auto [found, first] = fastest.emplace(sample.peers, sample.busy);
    if (!first) found->second = std::min(found->second, sample.busy);
    slowest = std::max(slowest, sample.busy);
  }
  // A rank that is early waits for the slowest one; what it waits beyond that is communication.
  const auto communication = [&](const StragglerSample& sample) {
    return std::max(0.0, sample.wait - (slowest - sample.busy));
  };
  double least = samples.empty() ? 0 : communication(samples[0]);
  for (const StragglerSample& sample : samples) least = std::min(least, communication(sample));
  std::vector<RankScore> scores;
  for (const StragglerSample& sample : samples)
    scores.push_back({.rank = static_cast<int>(scores.size()),
                      .relative = score_of(fastest[sample.peers], sample.busy),
                      .individual = score_of(sample.best, sample.busy),
                      .communication = score_of(std::max(least, kShortest), communication(sample)),
                      .sample = sample});
  return scores;
}

std::vector<int> slow_ranks(std::span<const RankScore> scores, const LoggerConfig& settings) {
  std::vector<int> ranks;
  for (const RankScore& score : scores) {
    const auto is_slow = [&](double share, double threshold) {
      const StragglerSample& own = score.sample;
      return share < threshold && own.busy * (1 - share) > kNotable * (own.busy + own.wait);
    };
    if ((settings.straggler_relative && is_slow(score.relative, settings.straggler_relative_threshold)) ||
        (settings.straggler_individual && is_slow(score.individual, settings.straggler_individual_threshold)))
      ranks.push_back(score.rank);
  }
  return ranks;
}

std::string straggler_lines(std::vector<RankScore> scores, const LoggerConfig& settings,
                            const std::vector<std::string>& places) {
  const std::vector<int> slow = slow_ranks(scores, settings);
  std::string text = "stragglers: scores (own work, best so far, communication)";
  const std::vector<RankScore> by_rank = scores;
  std::stable_sort(scores.begin(), scores.end(), [](const RankScore& a, const RankScore& b) {
    return std::min(a.relative, a.individual) < std::min(b.relative, b.individual);
  });
  const size_t shown = std::min(scores.size(), static_cast<size_t>(settings.straggler_scores));
  for (size_t i = 0; i < shown; ++i)
    text += fmt::format("{} rank {} {:.2f} {:.2f} {:.2f} ({:.1f} ms, waits {:.1f} ms)", i == 0 ? ":" : ",",
                        scores[i].rank, scores[i].relative, scores[i].individual, scores[i].communication,
                        1e3 * scores[i].sample.busy, 1e3 * scores[i].sample.wait);
  for (const int rank : slow) {
    const RankScore& score = by_rank[static_cast<size_t>(rank)];
    text += fmt::format(
        "\nstragglers: rank {} on {} is slow: {:.2f} of the speed of its fastest peer, {:.2f} of its own "
        "best; "
        "look at clocks, temperature and other programs there, or end its process: with --inprocess-restart "
        "the run goes on without it",
        rank, places[static_cast<size_t>(rank)], score.relative, score.individual);
  }
  return text;
}

}  // namespace megatron
