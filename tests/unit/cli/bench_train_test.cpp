#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

// A processor's peak is not known: nothing is said of it.
TEST(BenchTrain, OnACpu) {
  const Outcome outcome = run_command({"bench", "train", "gpt-10m", "--device", "cpu", "--recompute", "none",
                                       "--steps", "1", "--warmup", "0", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.find("mfu_percent"), nullptr);
  EXPECT_EQ(json.find("light_percent"), nullptr);
  EXPECT_NEAR(json.at("tokens_per_second").as_double() * json.at("iteration_ms").as_double(), 8 * 256 * 1e3,
              1);
  EXPECT_NEAR(json.at("memory_gib").as_double() / json.at("predicted_memory_gib").as_double(), 1, 0.05);
  EXPECT_GT(json.at("first_step_seconds").as_double() * 1e3, json.at("iteration_ms").as_double());
}

}  // namespace
}  // namespace megatron
