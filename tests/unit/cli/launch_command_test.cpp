#include <gtest/gtest.h>

#include "unit/cli/run_command.h"

namespace megatron {
namespace {

void expect_refused(std::vector<std::string> args, const std::string& words) {
  const Outcome outcome = run_command(std::move(args));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
}

// What would do nothing is refused, above all where it was to keep the job from starting.
TEST(LaunchCommand, RefusesFlagsOfTheOtherWay) {
  expect_refused({"launch", "--dry-run", "--", "true"},
                 "launch: --dry-run says something about --slurm alone");
  expect_refused({"launch", "--nodes=2", "--", "true"}, "add --slurm");
  expect_refused({"launch", "--slurm", "--dry-run", "--backoff", "2", "--", "true"},
                 "launch: --backoff does nothing with --slurm");
}

TEST(ResilienceCommand, RefusesATraceOfNothing) {
  for (const char* flag : {"--days", "--rate-factor", "--failures-per-gpu-day"})
    expect_refused({"resilience", "simulate", flag, "0"}, flag);
}

}  // namespace
}  // namespace megatron
