#include "megatron/tokenizers/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/tokenizers/hf_tokenizer.h"
#include "megatron/tokenizers/make_tokenizer.h"
#include "megatron/tokenizers/training/bpe_trainer.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

using Ids = std::vector<TokenId>;
const std::string kFolder = MEGATRON_GOLDEN_DIR "/tokenizers/";

Tokenizer llama3() { return make_tokenizer("HuggingFaceTokenizer", kFolder + "byte_bpe_llama3"); }

std::vector<std::string> golden_texts() {
  std::vector<std::string> texts;
  const Json expected = Json::read(kFolder + "byte_bpe_llama3/expected.json");
  for (const Json& row : expected.at("cases").as_array()) texts.push_back(row.at("text").as_string());
  return texts;
}

Tokenizer tokenizer_of(const char* settings) {
  return Tokenizer(std::make_shared<tokenizers::HfTokenizer>(Json::parse(settings), SpecialIds{}));
}

TEST(Tokenizer, BatchesDoNotDependOnThreads) {
  const Tokenizer tokenizer = llama3();
  std::vector<std::string> texts = golden_texts();
  const auto one = tokenizer.encode_batch(texts, true, 1);
  EXPECT_EQ(tokenizer.encode_batch(texts, true, 3), one);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(one[i], tokenizer.encode(texts[i], true));
}

// Memory so small that it forgets all the time changes nothing.
TEST(Tokenizer, ResultsDoNotDependOnMemory) {
  const Tokenizer tokenizer = llama3();
  Encoder large(tokenizer), small(tokenizer, 1);
  std::string all;
  for (const std::string& text : golden_texts()) all += text;
  for (int i = 0; i < 3000; ++i)
    all += " word" + std::to_string(i * 7919) + "\u4f60\u597d" +
           std::string(20, static_cast<char>('a' + i % 26)) + std::to_string(i);
  const Ids expected = tokenizer.encode_with_offsets(all).ids;
  for (Encoder* encoder : {&large, &small, &large, &small}) {
    Ids ids;
    encoder->encode(all, ids);
    EXPECT_TRUE(ids == expected);
  }
}

// Bert's words take a path of their own where words are remembered.
TEST(Tokenizer, BertsWordsDoNotDependOnMemory) {
  const std::string pieces[] = {"[PAD]", "[UNK]", "a", "b", "ab", "##a", "##b", "##ab",   "1",
                                "##1",   ".",     ",", "A", "B",  "##B", "'",   "\u4f60", "e"};
  for (
      const char* normalizer :
      {"null",
       R"({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true})",
       R"({"type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": false, "strip_accents": true, "lowercase": false})",
       R"({"type": "Lowercase"})"}) {
    Json vocabulary = Json::object();
    for (const std::string& piece : pieces) vocabulary[piece] = static_cast<int64_t>(vocabulary.size());
    Json settings = Json::object();
    settings["normalizer"] = Json::parse(normalizer);
    settings["pre_tokenizer"] = Json::parse(R"({"type": "BertPreTokenizer"})");
    settings["model"] = Json::Object{{"type", "WordPiece"},
                                     {"vocab", vocabulary},
                                     {"unk_token", "[UNK]"},
                                     {"max_input_chars_per_word", 9}};
    const Tokenizer tokenizer(std::make_shared<tokenizers::HfTokenizer>(settings, SpecialIds{}));
    Encoder encoder(tokenizer), small(tokenizer, 1);
    const std::string_view alphabet[] = {"a",  "b", "A",    "B",    "1",      ".",      ",",      "'", " ",
                                         "\n", "~", "\x7f", "\x01", "\u00e9", "\u4f60", "\u00a0", "z"};
    std::mt19937 random(4);
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (size_t i = random() % 40; i > 0; --i)
        text += alphabet[random() % (round % 2 ? 8 : std::size(alphabet))];
      const Ids expected = tokenizer.encode_with_offsets(text).ids;
      for (Encoder* one : {&encoder, &small}) {
        Ids ids;
        one->encode(text, ids);
        ASSERT_EQ(ids, expected) << text << normalizer;
      }
    }
  }
}

// Places have 32 bits: longer texts are refused before anything is read.
TEST(Tokenizer, RefusesTextsThatAreTooLong) {
  const char one = 'a';
  const std::string_view text(&one, size_t{1} << 32);
  const Tokenizer tokenizer = llama3();
  Encoder encoder(tokenizer);
  Ids ids;
  EXPECT_THROW(tokenizer.encode(text), ConfigError);
  EXPECT_THROW(tokenizer.encode_with_offsets(text), ConfigError);
  EXPECT_THROW(encoder.encode(text, ids), ConfigError);
}

TEST(Tokenizer, MalformedTextCountsAsReplacements) {
  const std::string bytes = "a\xff\xe4\xbd z\xf0\x9f";
  for (const Tokenizer& tokenizer :
       {llama3(), make_tokenizer("HuggingFaceTokenizer", kFolder + "wordpiece_cased"),
        make_tokenizer("TikTokenizer", kFolder + "tiktoken_o200k_like/vocab.tiktoken")})
    EXPECT_EQ(tokenizer.encode(bytes), tokenizer.encode(tokenizers::to_utf8_lossy(bytes)));
  // SentencePiece takes each malformed byte by itself.
  const Tokenizer pieces =
      make_tokenizer("SentencePieceTokenizer", kFolder + "sentencepiece_bpe_llama/tokenizer.model");
  EXPECT_EQ(pieces.encode(bytes), pieces.encode("a\ufffd\ufffd\ufffd z\ufffd\ufffd"));
}

TEST(Tokenizer, StreamsHoldCharactersBack) {
  const Tokenizer tokenizer = make_tokenizer("ByteLevelTokenizer", "");
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.push(0xA9), "\u00e9");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, NullAndByteLevel) {
  const Tokenizer null = make_tokenizer("NullTokenizer", "", {.vocab_size = 100});
  EXPECT_EQ(null.encode(" 1 20\t99\n"), (Ids{1, 20, 99}));
  EXPECT_EQ(null.decode(Ids{1, 20}), "1 20");
  EXPECT_EQ(null.special_ids().eod, 99);
  EXPECT_THROW(null.encode("100"), ConfigError);
  EXPECT_THROW(null.encode("x"), ConfigError);
  EXPECT_THROW(null.decode(Ids{100}), ConfigError);
  const Tokenizer bytes = make_tokenizer("ByteLevelTokenizer", "");
  EXPECT_EQ(bytes.encode("a\u00e9"), (Ids{97, 0xC3, 0xA9}));
  EXPECT_EQ(bytes.decode(Ids{97, 300, 0xC3, 0xA9, 0xFF}), "a\u00e9");
  EXPECT_EQ(bytes.vocab_size(), 512);
}

TEST(Tokenizer, TruncatesAndPadsAsTheFileSays) {
  const Tokenizer tokenizer = tokenizer_of(R"({
    "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 6}, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 9, "pad_type_id": 0, "pad_token": "P"},
    "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": {"type": "BertProcessing", "sep": ["S", 8], "cls": ["C", 7]},
    "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"a": 0, "b": 1, "u": 2, "C": 7, "S": 8, "P": 9}}})");
  EXPECT_EQ(tokenizer.encode("a b a b", true), (Ids{9, 9, 7, 0, 1, 8}));
  EXPECT_EQ(tokenizer.encode("a b x b a", false), (Ids{9, 9, 0, 1, 2, 1}));
}

TEST(Tokenizer, RefusesByName) {
  const auto message = [](auto make) {
    try {
      make();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message([] { tokenizer_of(R"({"model": {"type": "Magic", "vocab": {}}})"); }).find("'Magic'"),
            std::string::npos);
  EXPECT_NE(message([] {
              tokenizer_of(
                  R"({"normalizer": {"type": "Odd"}, "model": {"type": "BPE", "vocab": {}, "merges": []}})");
            }).find("'Odd'"),
            std::string::npos);
  EXPECT_NE(
      message([] {
        tokenizer_of(
            R"({"pre_tokenizer": {"type": "AnotherSplit"}, "model": {"type": "BPE", "vocab": {}, "merges": []}})");
      }).find("'AnotherSplit'"),
      std::string::npos);
  EXPECT_NE(message([] { make_tokenizer("GPT5Tokenizer", ""); }).find("HuggingFaceTokenizer"),
            std::string::npos);
  EXPECT_NE(message([] { make_tokenizer("HuggingFaceTokenizer", "/nowhere"); }).find("/nowhere"),
            std::string::npos);
  EXPECT_THROW(make_tokenizer("TikTokenizer", kFolder + "tiktoken_o200k_like/vocab.tiktoken",
                              {.tiktoken_pattern = "v9"}),
               ConfigError);
}

// The merges that Hugging Face's BpeTrainer finds for these lines.
TEST(BpeTrainer, FindsTheMergesOfHuggingFace) {
  BpeTrainer trainer({.vocab_size = 256 + 16});
  trainer.add("the cat sat on the mat\n");
  trainer.add("that cat ate the fat rat\n");
  trainer.add("aaaa aaa aa a abab abcabc\n");
  const TrainedBpe trained = trainer.train();
  std::string merges;
  for (const auto& [left, right] : trained.merges) merges += left + "+" + right + " ";
  EXPECT_EQ(merges, "a+t a+a a+b t+h th+e c+at Ġ+aa Ġ+ab Ġ+the Ġ+cat c+ab f+at m+at o+n r+at s+at ");
  const Tokenizer tokenizer(std::make_shared<tokenizers::HfTokenizer>(trained.to_json(), SpecialIds{}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the bat \u00e9\n")), "the bat \u00e9\n");
}

// vocab.json and merges.txt give what tokenizer.json gives.
TEST(BpeTrainer, WritesFilesThatLoad) {
  BpeTrainer trainer({.vocab_size = 300, .special_tokens = {"<|endoftext|>"}});
  for (const std::string& text : golden_texts()) trainer.add(text);
  const TrainedBpe trained = trainer.train();
  const auto folder = std::filesystem::path(testing::TempDir()) / "megatron_trained_bpe";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "vocab.json") << trained.vocab_json().dump();
  std::ofstream(folder / "merges.txt") << trained.merges_text();
  std::ofstream(folder / "tokenizer.json") << trained.to_json().dump();
  const Tokenizer classic = make_tokenizer("GPT2BPETokenizer", folder.string());
  const Tokenizer modern = make_tokenizer("HuggingFaceTokenizer", folder.string());
  for (const std::string& text : golden_texts()) {
    EXPECT_EQ(classic.encode(text), modern.encode(text));
    EXPECT_EQ(modern.decode(modern.encode(text)), text);
  }
  EXPECT_EQ(classic.special_ids().eod, 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace megatron
