#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/config/config.h"

namespace megatron {

// What a rank measured since the last report, in seconds of a step. Work of its own is what is left of a step
// without its waits for other ranks.
struct StragglerSample {
  int64_t peers = 0;  // ranks with the same number have the same work
  double busy = 0;    // its own work, in the median
  double wait = 0;    // for other ranks, in the median
  double best = 0;    // the least `busy` of all reports
};

// How fast a rank is, from 1 (as the fastest) down to 0; 0.5 takes twice as long.
struct RankScore {
  int rank = 0;
  double relative = 1;    // beside the fastest of its peers
  double individual = 1;  // beside its own best
  double communication =
      1;  // its time in collectives behind the arrival of the slowest rank, beside the least
  StragglerSample sample;
};

std::vector<RankScore> straggler_scores(std::span<const StragglerSample> samples);

// Ranks below the thresholds of the settings whose delay is a notable part of a step.
std::vector<int> slow_ranks(std::span<const RankScore> scores, const LoggerConfig& settings);

// One line on the lowest scores, and one with advice for each slow rank; `places` names each rank's machine.
std::string straggler_lines(std::vector<RankScore> scores, const LoggerConfig& settings,
                            const std::vector<std::string>& places);

}  // namespace megatron
