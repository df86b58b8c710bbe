#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

// `megatron tokenizer ACTION` on lines that stand in a file.
Outcome run_on(const testing::TempDir& folder, const std::string& lines, std::vector<std::string> args) {
  const std::string path = folder / "lines";
  testing::write_text(path, lines);
  args.insert(args.begin(), "tokenizer");
  args.insert(args.end(), {"--input", path});
  return run_command(std::move(args));
}

TEST(TokenizerCommand, EncodesAndDecodesLines) {
  const testing::TempDir folder;
  Outcome outcome =
      run_on(folder, "\"ab\"\n\"\"\n\"\\u00e9\"\n", {"encode", "--tokenizer-type", "ByteLevelTokenizer"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[97, 98]\n[]\n[195, 169]\n");
  outcome = run_on(folder, "[97, 98]\n[]\n", {"decode", "--tokenizer-type", "ByteLevelTokenizer"});
  EXPECT_EQ(outcome.out, "\"ab\"\n\"\"\n");
  outcome = run_on(folder, "\"7 8\"\n",
                   {"encode", "--tokenizer-type", "NullTokenizer", "--vocab-size", "9", "--json"});
  EXPECT_EQ(outcome.out, "{\"ids\":[7,8],\"pieces\":[\"7\",\"8\"],\"offsets\":[[0,1],[2,3]]}\n");
}

TEST(TokenizerCommand, NamesTheLineThatIsWrong) {
  const testing::TempDir folder;
  const Outcome outcome = run_on(folder, "\"a\"\n17\n", {"encode", "--tokenizer-type", "ByteLevelTokenizer"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("lines:2"), std::string::npos) << outcome.err;
  EXPECT_EQ(run_command({"tokenizer", "shuffle"}).code, 2);
  EXPECT_EQ(run_command({"tokenizer", "encode"}).code, 2);
}

TEST(TokenizerCommand, TrainsWhatItCanLoad) {
  const testing::TempDir folder;
  const std::string out = folder / "trained";
  Outcome outcome =
      run_on(folder, "low lower lowest low low\n", {"train", "--out", out, "--vocab-size", "260"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::read(out + "/tokenizer.json").at("model").at("merges").size(), 3u);
  outcome = run_on(folder, "\"low\"\n",
                   {"encode", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", out});
  EXPECT_EQ(outcome.out, "[258]\n") << outcome.err;  // behind <|endoftext|> and the bytes
}

}  // namespace
}  // namespace megatron
