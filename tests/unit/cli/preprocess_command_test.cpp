#include "megatron/cli/commands.h"

#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

using testing::TempDir;

TEST(PreprocessCommand, NumbersAsText) {
  TempDir dir;
  testing::write_text(dir / "a.jsonl", "{\"text\":\"1 2 3\"}\n{\"text\":\"4\"}\n");
  testing::write_text(dir / "b.jsonl", "{\"text\":\"5 6\"}\n");
  const Outcome outcome = run_command({"preprocess", "--input", dir / "*.jsonl", "--output-prefix",
                                       dir / "out", "--tokenizer-type", "NullTokenizer", "--vocab-size",
                                       "100", "--append-eod", "--workers", "2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("documents").as_int(), 3);
  const IndexedDataset dataset(json.at("prefixes")[0].as_string());
  EXPECT_EQ(dataset.type(), TokenType::u16);
  std::vector<int64_t> tokens(4);
  dataset.read(0, 0, tokens);
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(tokens[2], 3);
  EXPECT_EQ(dataset.lengths()[2], 3);
  EXPECT_EQ(json.at("tokens").as_int(), 9);
}

TEST(PreprocessCommand, FaultsAreTold) {
  TempDir dir;
  testing::write_text(dir / "a.jsonl", "{\"text\":1}\n");
  EXPECT_EQ(run_command({"preprocess"}).code, 2);
  const Outcome outcome =
      run_command({"preprocess", "--input", dir / "a.jsonl", "--output-prefix", dir / "out",
                   "--tokenizer-type", "NullTokenizer", "--vocab-size", "100"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("line 1: the value of 'text' is no string"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace megatron
