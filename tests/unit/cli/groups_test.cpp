#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

Outcome groups(std::vector<std::string> args) {
  args.insert(args.begin(), "groups");
  return run_command(std::move(args));
}

TEST(Groups, JsonHasEveryGroup) {
  const Outcome outcome =
      groups({"--world-size", "16", "--tensor-model-parallel-size=2", "--context-parallel-size", "2",
              "--pipeline-model-parallel-size", "2", "--expert-model-parallel-size", "2",
              "--expert-tensor-parallel-size", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json document = Json::parse(outcome.out);
  EXPECT_EQ(document.at("tp").dump(), "[[0,1],[2,3],[4,5],[6,7],[8,9],[10,11],[12,13],[14,15]]");
  EXPECT_EQ(document.at("dp-cp").dump(), "[[0,2,4,6],[1,3,5,7],[8,10,12,14],[9,11,13,15]]");
  EXPECT_EQ(document.at("ep").dump(), "[[0,1],[2,3],[4,5],[6,7],[8,9],[10,11],[12,13],[14,15]]");
  EXPECT_EQ(document.at("embd").dump(), "[[0,8],[1,9],[2,10],[3,11],[4,12],[5,13],[6,14],[7,15]]");
  for (const char* name : {"pp", "dp", "cp", "etp", "edp", "mp", "tp-cp"})
    EXPECT_TRUE(document.contains(name)) << name;
}

TEST(Groups, OrderAndRepeatedFlags) {
  const std::vector<std::string> args = {"--world-size",
                                         "16",
                                         "--tensor-model-parallel-size",
                                         "8",
                                         "--tensor-model-parallel-size",
                                         "2",
                                         "--pipeline-model-parallel-size",
                                         "4"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), args.begin(), args.end());
    more.push_back("--json");
    return Json::parse(groups(more).out).at("pp").dump();
  };
  EXPECT_EQ(with({}), "[[0,4,8,12],[1,5,9,13],[2,6,10,14],[3,7,11,15]]");
  EXPECT_EQ(with({"--rank-order", "tp-cp-ep-pp-dp"}), "[[0,2,4,6],[1,3,5,7],[8,10,12,14],[9,11,13,15]]");
  EXPECT_EQ(with({"--use-tp-pp-dp-mapping"}), "[[0,2,4,6],[1,3,5,7],[8,10,12,14],[9,11,13,15]]");
}

TEST(Groups, TextForPeople) {
  const Outcome outcome = groups({"--world-size", "4", "--tensor-model-parallel-size", "2"});
  EXPECT_NE(outcome.out.find("tp                2 × 2   [0 1] [2 3]\n"), std::string::npos) << outcome.out;
}

TEST(Groups, RefusalsSayWhy) {
  const Outcome layout = groups({"--world-size", "6", "--tensor-model-parallel-size", "4"});
  EXPECT_EQ(layout.code, 1);
  EXPECT_NE(layout.err.find("world size 6 is not divisible by tp*pp*cp = 4"), std::string::npos)
      << layout.err;
  EXPECT_NE(layout.err.find("etp*ep*pp = 4"), std::string::npos) << layout.err;
  EXPECT_EQ(groups({}).code, 2);
  EXPECT_EQ(groups({"--world-size"}).code, 2);
  EXPECT_EQ(groups({"--world-size", "two"}).code, 1);
  EXPECT_EQ(groups({"--world-size", "4", "--tensor-model-parallel-size", "2",
                    "--tensor-parallel-num-weight-shards", "3"})
                .code,
            1);
  EXPECT_EQ(groups({"--world-size", "4", "--json=yes"}).code, 2);
  const Outcome typo = groups({"--word-size", "4"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_NE(typo.err.find("did you mean '--world-size'"), std::string::npos) << typo.err;
}

}  // namespace
}  // namespace megatron
