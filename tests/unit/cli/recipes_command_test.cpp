#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

TEST(RecipesCommand, ListsByFilters) {
  const Outcome outcome =
      run_command({"recipes", "list", "--family", "llama", "--task", "sft", "--json", "--precision=bf16"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json rows = Json::parse(outcome.out);
  EXPECT_EQ(rows.size(), 7u);
  for (const Json& row : rows.as_array()) {
    EXPECT_EQ(row.at("family").as_string(), "llama");
    EXPECT_EQ(row.at("task").as_string(), "sft");
    EXPECT_TRUE(row.at("needs").is_null());
  }
  const Outcome all = run_command({"recipes", "list", "--perf"});
  EXPECT_NE(all.out.find("perf/llama3_8b_pretrain_8gpu_h100_fp8cs"), std::string::npos);
  EXPECT_EQ(run_command({"recipes", "list"}).out.find("perf/"), std::string::npos);
}

TEST(RecipesCommand, NamesTheNearestFilter) {
  const Outcome outcome = run_command({"recipes", "list", "--family", "lama"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("did you mean 'llama'"), std::string::npos) << outcome.err;
}

// What it shows is a configuration file that gives the same.
TEST(RecipesCommand, ShowsSettingsAndNotes) {
  const Outcome outcome = run_command({"recipes", "show", "kimi_k2_pretrain_config", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json recipe = Json::parse(outcome.out);
  EXPECT_EQ(recipe.at("name").as_string(), "kimi_k2_pretrain_512gpu_h100_bf16");
  EXPECT_EQ(recipe.at("settings").at("model").at("num_moe_experts").as_int(), 384);
  EXPECT_EQ(recipe.at("settings").at("optimizer").at("optimizer").as_string(), "dist_muon");
  const Outcome text = run_command({"recipes", "show", "tiny/llama"});
  EXPECT_EQ(text.out.find("# tiny/llama: meta-llama/Llama-3.2-1B\n"), 0u) << text.out;
  EXPECT_EQ(run_command({"recipes"}).code, 2);
  EXPECT_EQ(run_command({"recipes", "show", "no such"}).code, 1);
}

TEST(RecipesCommand, RecipeIsAnOriginOfSettings) {
  const Outcome outcome = run_command({"config", "show", "--recipe", "llama32_1b_sft", "--changed"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("recipe llama32_1b_sft_1gpu_h100_bf16:"), std::string::npos) << outcome.out;
  const Outcome lacking = run_command({"config", "show", "--recipe", "llama32_1b_peft", "--json"});
  ASSERT_EQ(lacking.code, 0) << lacking.err;
  EXPECT_NE(Json::parse(lacking.out).at("unavailable")[0].as_string().find("not available yet in this build"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron
