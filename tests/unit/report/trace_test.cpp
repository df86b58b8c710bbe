#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "megatron/report/trace.h"

namespace megatron::report {
namespace {

TEST(Trace, PairsMessagesInTheirOrder) {
  const std::vector<TraceEnd> ends = {{0, 1, true, "activations", 10},  {0, 1, true, "activations", 20},
                                      {1, 0, true, "gradients", 30},    {1, 0, false, "activations", 25},
                                      {1, 0, false, "activations", 15}, {0, 1, false, "gradients", 40},
                                      {0, 2, true, "activations", 50}};
  const std::vector<TraceMessage> messages = match_messages(ends);
  ASSERT_EQ(messages.size(), 3u);  // nobody received the last one
  EXPECT_EQ(messages[0].from, 0);
  EXPECT_EQ(messages[0].sent, 10);
  EXPECT_EQ(messages[0].received, 15);
  EXPECT_EQ(messages[1].received, 25);
  EXPECT_EQ(messages[2].name, "gradients");
  EXPECT_EQ(messages[2].to, 0);
}

TEST(Trace, IsWhatPerfettoReads) {
  Trace trace;
  trace.spans = {{0, TraceLane::compute, "step", 1000, 1500},
                 {1, TraceLane::data, "read batches", 1100, 1110}};
  trace.messages = {{0, 1, "activations", 1200, 1300}};
  trace.counters = {{0, "memory_gib", 1400, 2.5}};
  const Json document = Json::parse(chrome_trace(trace));
  std::map<std::string, int> phases;
  for (const Json& event : document.at("traceEvents").as_array()) {
    ++phases[event.at("ph").as_string()];
    if (event.at("name").as_string() == "step") {
      EXPECT_EQ(event.at("ts").as_double(), 0);
      EXPECT_EQ(event.at("dur").as_double(), 500);
      EXPECT_EQ(event.at("pid").as_int(), 0);
    }
    if (event.at("ph").as_string() == "f") {
      EXPECT_EQ(event.at("ts").as_double(), 300);
    }
  }
  EXPECT_EQ(phases["X"], 2);
  EXPECT_EQ(phases["s"], 1);
  EXPECT_EQ(phases["f"], 1);
  EXPECT_EQ(phases["C"], 1);
  // Two ranks, of which each has a name and a place, and so have their four lanes.
  EXPECT_EQ(phases["M"], 2 * 2 + 2 * 4);
}

}  // namespace
}  // namespace megatron::report
