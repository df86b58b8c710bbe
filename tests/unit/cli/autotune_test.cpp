#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

const std::string kTables = MEGATRON_GOLDEN_DIR "/autotune/";

Outcome autotune(std::vector<std::string> args) {
  args.insert(args.begin(), "autotune");
  return run_command(std::move(args));
}

std::vector<std::string> small_model(std::vector<std::string> first) {
  const std::vector<std::string> model = {
      "--num-layers",        "24",    "--hidden-size", "2048", "--num-attention-heads",     "16",
      "--vocab-size",        "50304", "--seq-length",  "2048", "--max-position-embeddings", "2048",
      "--global-batch-size", "256"};
  first.insert(first.end(), model.begin(), model.end());
  return first;
}

TEST(Autotune, PredictsATable) {
  const Outcome text = autotune({"predict", "--table", kTables + "measured-plans-a100.json", "--draws", "2"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("held out: single node"), std::string::npos) << text.out;
  const Outcome json =
      autotune({"predict", "--table", kTables + "published-performance.json", "--draws", "1", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json document = Json::parse(json.out);
  EXPECT_GT(document.at("rows").size(), 300u);
  const Json& row = document.at("rows")[0];
  for (const char* key : {"id", "predicted", "measured", "error"}) EXPECT_TRUE(row.contains(key)) << key;
  EXPECT_NEAR(row.at("predicted").as_double() / row.at("measured").as_double() - 1,
              row.at("error").as_double(), 1e-9);
  EXPECT_GE(document.at("summary").at("not_judged").size(), 5u);
}

TEST(Autotune, RanksATable) {
  const Outcome outcome =
      autotune({"rank", "--table", kTables + "measured-plans-a100.json", "--draws", "0", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json document = Json::parse(outcome.out);
  EXPECT_GE(document.at("groups").size(), 10u);
  EXPECT_GE(document.at("groups")[0].at("ids").size(), 2u);
  EXPECT_LE(document.at("summary").at("mean_loss").as_double(), 0.02);
}

TEST(Autotune, SearchWritesARecipeThatPlanTakes) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/recipe.yaml";
  const Outcome outcome = autotune(small_model(
      {"search", "--cluster", MEGATRON_SOURCE_DIR "/examples/clusters/h200-8.yaml", "--out", path}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("why the first"), std::string::npos) << outcome.out;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(path) == std::string::npos) EXPECT_LE(line.size(), 80u) << line;
  }
  const Outcome shown = run_command({"config", "show", "--config", path, "--world-size", "8"});
  EXPECT_EQ(shown.code, 0) << shown.err << read_text_file(path);
}

TEST(Autotune, ExplainsAPlan) {
  const Outcome outcome =
      autotune(small_model({"explain", "--gpus", "16", "--tensor-model-parallel-size", "2", "--bf16"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("what binds"), std::string::npos);
  EXPECT_NE(outcome.out.find("twice the NIC"), std::string::npos);
}

TEST(Autotune, RefusesWithAdvice) {
  EXPECT_EQ(autotune({}).code, 2);
  EXPECT_EQ(autotune({"rank"}).code, 2);
  EXPECT_EQ(autotune({"predict", "--table", "/nowhere.json"}).code, 3);
  EXPECT_EQ(autotune(small_model({"predict", "--gpu", "H999"})).code, 1);
  const Outcome outcome =
      autotune(small_model({"predict", "--gpus", "16", "--tensor-model-parallel-size", "16"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("tp leaves the NVLink domain"), std::string::npos) << outcome.err;
  EXPECT_EQ(autotune({"search", "--gpus", "8"}).code, 1);
  EXPECT_EQ(autotune(small_model({"search", "--gpus", "0"})).code, 2);
}

}  // namespace
}  // namespace megatron
