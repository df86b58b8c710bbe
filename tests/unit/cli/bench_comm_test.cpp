#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

Outcome run(std::vector<std::string> args) {
  args.insert(args.begin(), {"bench", "comm", "--repeat", "1"});
  return run_command(std::move(args));
}

TEST(BenchComm, JsonHasEveryCollectiveAndItsCeiling) {
  const Outcome outcome = run({"--json", "--ranks", "3", "--sizes", "100,3KiB", "--dtype", "bf16"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("ranks").as_int(), 3);
  const Json& rows = json.at("collectives");
  ASSERT_EQ(rows.size(), 1u + 2 * 6);
  for (const Json& row : rows.as_array()) {
    EXPECT_GT(row.at("us").as_double(), 0);
    if (row.at("collective").as_string() == "barrier") continue;
    EXPECT_TRUE(row.at("bytes").as_int() == 96 || row.at("bytes").as_int() == 3072)
        << "a multiple of the ranks";
    EXPECT_GT(row.at("percent").as_double(), 0);
  }
}

TEST(BenchComm, TableAndRefusals) {
  const Outcome outcome = run({"--filter", "all_gather", "--sizes", "1MiB"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("all_gather"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("1 MiB"), std::string::npos) << outcome.out;
  EXPECT_EQ(run({"--sizes", "big"}).code, 2);
  EXPECT_EQ(run({"--sizes", "0"}).code, 2);
  EXPECT_EQ(run({"ring"}).code, 2);
}

}  // namespace
}  // namespace megatron
