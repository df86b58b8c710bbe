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

// What is wrong with given files is the user's to mend: exit 1, not a fault.
TEST(TokenizerCommand, RefusesFilesThatAreWrong) {
  const testing::TempDir folder;
  testing::write_text(folder / "broken.json", "{");
  const auto refused = [&](std::vector<std::string> args, const char* why) {
    args.insert(args.begin(), "tokenizer");
    const Outcome outcome = run_command(args);
    EXPECT_EQ(outcome.code, 1) << why;
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
  };
  const std::vector<std::string> hf = {"encode", "--tokenizer-type", "HuggingFaceTokenizer",
                                       "--tokenizer-model"};
  for (const auto& [path, why] : {std::pair{"broken.json", "malformed JSON"}, {"absent", "is no file"}}) {
    std::vector<std::string> args = hf;
    args.push_back(folder / path);
    refused(args, why);
  }
  const std::string out = folder / "out";
  refused({"train", "--input", folder / "", "--out", out}, "is a folder");
  testing::write_text(folder / "empty", " \n");
  refused({"train", "--input", folder / "empty", "--out", out}, "no text to learn from");
  testing::write_text(folder / "rows.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n");
  refused({"train", "--input", folder / "rows.jsonl", "--out", out}, "rows.jsonl:2");
  refused({"train", "--input", folder / "absent", "--out", folder / "rows.jsonl/x"},
          "rows.jsonl/x cannot be written");
  testing::write_text(folder / "ids", "[1]\n[\"x\"]\n");
  refused({"decode", "--tokenizer-type", "ByteLevelTokenizer", "--input", folder / "ids"}, "ids:2");
  refused({"chat", "--template", folder / "absent"}, "absent");
}

TEST(TokenizerCommand, SpecialTokensAreWordsOrSeparatedByCommas) {
  const testing::TempDir folder;
  const auto ids = [&](std::vector<std::string> words) {
    std::vector<std::string> args = {"train",        "--out", folder / "trained",
                                     "--vocab-size", "260",   "--tokenizer-special-tokens"};
    args.insert(args.end(), words.begin(), words.end());
    EXPECT_EQ(run_on(folder, "low lower\n", args).code, 0);
    const Json vocabulary = Json::read(folder / "trained" + "/vocab.json");
    return std::pair(vocabulary.at("<a>").as_int(), vocabulary.at("<b>").as_int());
  };
  EXPECT_EQ(ids({"<a>", "<b>"}), std::pair(int64_t{0}, int64_t{1}));
  EXPECT_EQ(ids({"<a>,<b>"}), std::pair(int64_t{0}, int64_t{1}));
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
