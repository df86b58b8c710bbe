#include "megatron/training/health/stragglers.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace megatron
