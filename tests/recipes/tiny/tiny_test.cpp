// The tiny recipe of each family trains on the CPU as its users would start it.
#include <gtest/gtest.h>

#include <cmath>

#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/recipes/recipe_catalogue.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

std::vector<std::string> tiny_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : all_recipes())
    if (recipe.is_tiny()) names.push_back(recipe.family);
  return names;
}

class TinyRecipe : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyRecipe, Trains) {
  const testing::TempDir dir;
  const std::string metrics = dir / "metrics.jsonl";
  const Outcome outcome = run_command({"pretrain", "--recipe", "tiny/" + GetParam(), "--metrics", metrics});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string rows = read_text_file(metrics);
  int64_t count = 0;
  for (size_t at = 0; at < rows.size(); ++count) {
    const size_t end = rows.find('\n', at);
    const Json row = Json::parse(rows.substr(at, end - at));
    at = end + 1;
    // Nothing is known of 256 tokens at first, and of random ones little can be learned.
    EXPECT_NEAR(row.at("lm_loss").as_double(), std::log(256.0), 0.4);
    EXPECT_GT(row.at("grad_norm").as_double(), 0);
  }
  EXPECT_EQ(count, 3);
}

INSTANTIATE_TEST_SUITE_P(Families, TinyRecipe, ::testing::ValuesIn(tiny_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace megatron
