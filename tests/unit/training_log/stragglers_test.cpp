#include "megatron/training/health/stragglers.h"

#include <gtest/gtest.h>

#include "megatron/training/health/straggler_scores.h"

namespace megatron {
namespace {

TEST(Stragglers, AreNamedByTheirPasses) {
  const TimerTable table{.timers = {{"forward-compute", 2}, {"backward-compute", 2}, {"batch-generator", 2}},
                         .seconds = {{0.1, 0.2, 0}, {0.1, 0.4, 0.001}, {0.05, 0.15, 0.002}}};
  EXPECT_EQ(straggler_report(table, 1),
            " stragglers | passes (ms): fastest rank 2 200.00 | slowest rank 1 500.00 (1.67 x the median) | "
            "data (ms): fastest rank 0 0.00 | slowest rank 2 2.00 (2.00 x the median) |");
  EXPECT_NE(straggler_report(table, 2).find("slowest rank 0 300.00, rank 1 500.00 "), std::string::npos);
  EXPECT_NE(straggler_report(table, 9).find("fastest rank 2 200.00, rank 0 300.00, rank 1 500.00 "),
            std::string::npos);
}

TEST(Stragglers, AreUnknownWhereNothingWasTimed) {
  EXPECT_EQ(straggler_report({.timers = {{"optimizer", 1}}, .seconds = {{1}}}, 1), "");
}

// Four ranks of two stages; rank 1 takes twice as long as its peer, which waits for it.
TEST(Stragglers, HaveScores) {
  const std::vector<StragglerSample> samples = {{.peers = 0, .busy = 0.010, .wait = 0.012, .best = 0.010},
                                                {.peers = 0, .busy = 0.020, .wait = 0.002, .best = 0.010},
                                                {.peers = 1, .busy = 0.005, .wait = 0.017, .best = 0.005},
                                                {.peers = 1, .busy = 0.005, .wait = 0.019, .best = 0.004}};
  const std::vector<RankScore> scores = straggler_scores(samples);
  EXPECT_NEAR(scores[0].relative, 1, 1e-9);
  EXPECT_NEAR(scores[1].relative, 0.5, 1e-9);
  EXPECT_NEAR(scores[1].individual, 0.5, 1e-9);
  EXPECT_NEAR(scores[2].relative, 1, 1e-9);  // a stage with less work is no faster
  EXPECT_NEAR(scores[3].individual, 0.8, 1e-9);
  EXPECT_NEAR(scores[0].communication, 1, 1e-9);  // 2 ms on all but the last, which takes 4
  EXPECT_NEAR(scores[3].communication, 0.5, 1e-9);
  LoggerConfig settings;
  EXPECT_EQ(slow_ranks(scores, settings), (std::vector<int>{1}));
  settings.straggler_individual_threshold = 0.9;
  EXPECT_EQ(slow_ranks(scores, settings), (std::vector<int>{1, 3}));
  settings.straggler_individual = false;
  settings.straggler_scores = 2;
  const std::string text = straggler_lines(scores, settings, {"a", "b", "c", "d"});
  EXPECT_NE(text.find("rank 1 0.50 0.50 1.00 (20.0 ms, waits 2.0 ms), rank 3 1.00 0.80 0.50"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rank 1 on b is slow: 0.50 of the speed of its fastest peer"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("rank 0 "), std::string::npos) << text;
}

}  // namespace
}  // namespace megatron
