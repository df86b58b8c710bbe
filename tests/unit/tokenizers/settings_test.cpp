// Settings of tokenizer.json that rarely meet; the expected values are those of the package tokenizers
// 0.23.3.
#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/tokenizers/hf_tokenizer.h"

namespace megatron {
namespace {

using Ids = std::vector<TokenId>;
using Ranges = std::vector<CharRange>;

constexpr const char* kWords =
    R"({"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, " ": 2}, "unk_token": "<unk>"})";
constexpr const char* kUnigram =
    R"({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["  ", -1.0]]})";

Tokenizer tokenizer_of(const char* model, const char* key, const std::string& setting) {
  Json settings = Json::object();
  settings["model"] = Json::parse(model);
  settings[key] = Json::parse(setting);
  return Tokenizer(std::make_shared<tokenizers::HfTokenizer>(std::move(settings), SpecialIds{}));
}

// A template that puts <s> and </s> around the text, or one of them.
std::string around(bool before, bool behind) {
  return fmt::format(
      R"({{"type": "TemplateProcessing", "single": [{}{{"Sequence": {{"id": "A", "type_id": 0}}}}{}],
           "pair": [{{"Sequence": {{"id": "A", "type_id": 0}}}}, {{"Sequence": {{"id": "B", "type_id": 1}}}}],
           "special_tokens": {{"<s>": {{"id": "<s>", "ids": [3], "tokens": ["<s>"]}},
                               "</s>": {{"id": "</s>", "ids": [4], "tokens": ["</s>"]}}}}}})",
      before ? R"({"SpecialToken": {"id": "<s>", "type_id": 0}}, )" : "",
      behind ? R"(, {"SpecialToken": {"id": "</s>", "type_id": 0}})" : "");
}

const std::string kBert = R"({"type": "BertProcessing", "sep": ["[S]", 6], "cls": ["[C]", 5]})";
const std::string kRoberta =
    R"({"type": "RobertaProcessing", "sep": ["[S]", 6], "cls": ["[C]", 5], "trim_offsets": false})";

std::string sequence(const std::string& first, const std::string& second) {
  return fmt::format(R"({{"type": "Sequence", "processors": [{}, {}]}})", first, second);
}

// A template makes a text of each of its parts for the processor behind it.
TEST(PostProcessor, SequencesGoByTheirParts) {
  const auto ids = [](const std::string& settings, bool special) {
    const Tokenizer tokenizer = tokenizer_of(kWords, "post_processor", settings);
    const Ids encoded = tokenizer.encode("a", special);
    EXPECT_EQ(tokenizer.encode_with_offsets("a", special).ids, encoded);
    return encoded;
  };
  EXPECT_EQ(ids(sequence(around(true, true), kBert), true), (Ids{5, 3, 6, 1, 6, 4, 6}));
  EXPECT_EQ(ids(sequence(around(true, false), kRoberta), true), (Ids{5, 3, 6, 6, 1, 6}));
  EXPECT_EQ(ids(sequence(around(false, true), around(true, false)), true), (Ids{1, 4}));
  EXPECT_EQ(ids(sequence(kBert, around(true, true)), true), (Ids{3, 5, 1, 6, 4}));
  EXPECT_EQ(ids(sequence(kRoberta, kBert), true), (Ids{5, 5, 1, 6, 6}));
  EXPECT_EQ(ids(sequence(around(true, true), kBert), false), (Ids{1}));
  EXPECT_THROW(ids(sequence(around(true, true), around(true, true)), true), Error);  // the package panics
}

TEST(PostProcessor, EachTrimsPlaces) {
  const auto byte_level = [](bool trims, bool prefix) {
    return fmt::format(R"({{"type": "ByteLevel", "add_prefix_space": {}, "trim_offsets": {}}})", prefix,
                       trims);
  };
  const auto offsets = [&](const std::string& first, const std::string& second, const std::string& text) {
    return tokenizer_of(kUnigram, "post_processor", sequence(first, second))
        .encode_with_offsets(text, true)
        .offsets;
  };
  const std::string text = "  a  \u00a0b";
  EXPECT_EQ(offsets(byte_level(true, false), byte_level(true, true), text),
            (Ranges{{2, 2}, {2, 3}, {5, 5}, {7, 7}}));
  EXPECT_EQ(offsets(byte_level(false, true), byte_level(true, false), text),
            (Ranges{{2, 2}, {2, 3}, {5, 5}, {6, 7}}));
  EXPECT_EQ(offsets(byte_level(true, false), byte_level(true, true), "x   "), (Ranges{{0, 0}, {4, 4}}));
  EXPECT_EQ(offsets(kBert, byte_level(true, true), " ba"), (Ranges{{0, 0}, {0, 2}, {2, 3}, {0, 0}}));
}

TEST(AddedTokens, OneMayTakeTheSpacesOfAnother) {
  const Tokenizer tokenizer = tokenizer_of(kWords, "added_tokens", R"([
      {"id": 3, "content": "  ", "lstrip": true, "rstrip": true, "normalized": false, "special": false}])");
  const Encoding encoding = tokenizer.encode_with_offsets("a  \u0085    a");
  EXPECT_EQ(encoding.ids, (Ids{1, 3, 1}));
  EXPECT_EQ(encoding.offsets, (Ranges{{0, 1}, {1, 8}, {8, 9}}));
}

// Unlike other models, Unigram shows what it does not know.
TEST(Unigram, UnknownPiecesAreTheirText) {
  const Encoding encoding = tokenizer_of(kUnigram, "decoder", "null").encode_with_offsets("  a  \u00a0b");
  EXPECT_EQ(encoding.pieces, (std::vector<std::string>{"  ", "a", "  ", "\u00a0b"}));
  EXPECT_EQ(encoding.ids, (Ids{2, 1, 2, 0}));
}

// What the normalizer drops moves the text away from the front, with places and without.
TEST(Metaspace, MarksTheFrontOfTheOriginal) {
  Json settings = Json::object();
  settings["model"] = Json::parse(
      R"({"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "\u2581a": 2}, "unk_token": "<unk>"})");
  settings["normalizer"] = Json::parse(R"({"type": "Strip", "strip_left": true, "strip_right": true})");
  settings["pre_tokenizer"] = Json::parse(
      R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": true})");
  const Tokenizer tokenizer(std::make_shared<tokenizers::HfTokenizer>(std::move(settings), SpecialIds{}));
  EXPECT_EQ(tokenizer.encode("a"), Ids{2});
  EXPECT_EQ(tokenizer.encode(" a"), Ids{1});
  EXPECT_EQ(tokenizer.encode_with_offsets(" a").ids, Ids{1});
}

TEST(UnicodeScripts, CutWhereTheScriptChanges) {
  const Tokenizer tokenizer = tokenizer_of(kUnigram, "pre_tokenizer", R"({"type": "UnicodeScripts"})");
  const Encoding encoding = tokenizer.encode_with_offsets("  どこで生れ。 Yes b1б");
  EXPECT_EQ(encoding.pieces, (std::vector<std::string>{"どこで生れ", "。 ", "Yes b", "1", "б"}));
  EXPECT_EQ(encoding.offsets, (Ranges{{2, 7}, {7, 9}, {9, 14}, {14, 15}, {15, 16}}));
  EXPECT_EQ(tokenizer.encode(" "), Ids{});
}

TEST(Replace, AnEmptyTextHasNoMatch) {
  const Tokenizer tokenizer = tokenizer_of(kWords, "normalizer", R"({"type": "Sequence", "normalizers": [
      {"type": "Strip", "strip_left": true, "strip_right": true},
      {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "a"}]})");
  EXPECT_EQ(tokenizer.encode(" "), Ids{});
  EXPECT_EQ(tokenizer.encode("x"), Ids{1});
  EXPECT_EQ(tokenizer.encode("xy"), Ids{0});
}

TEST(Truncation, IsLeftOutWhereAddedTokensAloneAreTooMany) {
  Json settings = Json::object();
  settings["model"] = Json::parse(kWords);
  settings["post_processor"] = Json::parse(kBert);
  settings["truncation"] =
      Json::parse(R"({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0})");
  const Tokenizer tokenizer(std::make_shared<tokenizers::HfTokenizer>(std::move(settings), SpecialIds{}));
  EXPECT_EQ(tokenizer.encode("a", true), (Ids{5, 1, 6}));
}

}  // namespace
}  // namespace megatron
