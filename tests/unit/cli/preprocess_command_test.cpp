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

// As Megatron-LM's tools/preprocess_data.py: transformers adds the template's tokens, also to an empty text,
// and passes over the file's truncation and padding.
TEST(PreprocessCommand, TemplatesOfTokenizersAct) {
  TempDir dir;
  Json settings = Json::read(MEGATRON_GOLDEN_DIR "/tokenizers/byte_bpe_llama3/tokenizer.json");
  settings["truncation"] =
      Json::parse(R"({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0})");
  settings["padding"] = Json::parse(
      R"({"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x"})");
  testing::write_text(dir / "tokenizer.json", settings.dump());
  testing::write_text(dir / "a.jsonl", "{\"text\":\"hello world and more\"}\n{\"text\":\"\"}\n");
  const auto lengths = [&](const std::vector<std::string>& further) {
    std::vector<std::string> args = {"preprocess",
                                     "--input",
                                     dir / "a.jsonl",
                                     "--output-prefix",
                                     dir / "out",
                                     "--tokenizer-type",
                                     "HuggingFaceTokenizer",
                                     "--tokenizer-model",
                                     dir / "tokenizer.json",
                                     "--json"};
    args.insert(args.end(), further.begin(), further.end());
    const Outcome outcome = run_command(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const IndexedDataset dataset(Json::parse(outcome.out).at("prefixes")[0].as_string());
    std::vector<int64_t> first(1);
    dataset.read(0, 0, first);
    std::vector<int64_t> result = first;
    for (int64_t i = 0; i < dataset.sequences(); ++i) result.push_back(dataset.lengths()[i]);
    return result;
  };
  EXPECT_EQ(lengths({}), (std::vector<int64_t>{0, 8, 1}));
  EXPECT_EQ(lengths({"--tokenizer-hf-no-include-special-tokens"}), (std::vector<int64_t>{271, 7}));
}

TEST(PreprocessCommand, FaultsAreTold) {
  TempDir dir;
  testing::write_text(dir / "a.jsonl", "{\"text\":1}\n");
  EXPECT_EQ(run_command({"preprocess"}).code, 2);
  EXPECT_NE(run_command({"preprocess", "--input", dir / "a.jsonl", "--output-prefix", dir / "out",
                         "--workers-to-check", "2", "4", "--max-documents", "9", "--find-optimal-num-workers",
                         "--tokenizer-type", "NullTokenizer", "--vocab-size", "100"})
                .err.find("use --workers N"),
            std::string::npos);
  const Outcome outcome =
      run_command({"preprocess", "--input", dir / "a.jsonl", "--output-prefix", dir / "out",
                   "--tokenizer-type", "NullTokenizer", "--vocab-size", "100"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("line 1: the value of 'text' is neither a string"), std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace megatron
