// What Megatron-LM's wrapper of SentencePiece makes of a text; the expected ids and texts are its own.
#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/tokenizers/identifiers.h"
#include "megatron/tokenizers/make_tokenizer.h"
#include "megatron/tokenizers/metadata.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using Ids = std::vector<TokenId>;
using testing::TempDir;
using testing::write_text;

std::string model_of(const std::string& name) {
  return MEGATRON_GOLDEN_DIR "/tokenizers/sentencepiece_" + name + "/tokenizer.model";
}

Tokenizer open(const std::string& name, std::vector<std::string> special, bool ignore_extra_whitespaces) {
  TokenizerOptions options;
  options.sentencepiece_legacy = !special.empty();
  options.special_tokens = std::move(special);
  options.ignore_extra_whitespaces = ignore_extra_whitespaces;
  return make_tokenizer("SentencePieceTokenizer", model_of(name), options);
}

void expect(const Tokenizer& tokenizer, const std::string& text, const Ids& ids, const std::string& decoded) {
  EXPECT_EQ(tokenizer.encode(text), ids) << text;
  EXPECT_EQ(tokenizer.decode(ids), decoded) << text;
  const Encoding encoding = tokenizer.encode_with_offsets(text);
  EXPECT_EQ(encoding.ids, ids) << text;
  uint32_t begin = 0;
  for (const CharRange& range : encoding.offsets) {
    EXPECT_GE(range.begin, begin) << text;
    EXPECT_GE(range.end, range.begin) << text;
    begin = range.begin;
  }
}

TEST(SentencePieceWrapper, FindsSpecialTokens) {
  const Tokenizer gemma = open("bpe_gemma", {"<a>", "<s>", "b"}, true);
  EXPECT_EQ(gemma.vocab_size(), 801);
  EXPECT_EQ(gemma.id_of("<a>"), 800);
  EXPECT_TRUE(gemma.is_special(800));
  expect(gemma, "<a> hello <s>", {800, 485, 609, 2}, "<a>  hello  <s>");
  expect(gemma, "x<a><a> y b  z </s>  \n",
         {636, 800, 800, 392, 609, 629, 506, 650, 609, 518, 619, 653, 506, 8}, "x <a>  <a>  y  b   z </s>");
  expect(open("bpe_llama", {"<a>", "<s>", "b"}, true), "x<a><a> y b  z </s>  \n",
         {516, 800, 800, 487, 614, 634, 505, 614, 652, 614, 510, 623, 653, 505, 13},
         "x <a>  <a> y  b   z </s>");
  const Tokenizer unigram = open("unigram", {"<a>", "<s>", "b"}, true);
  expect(unigram, "x<a><a> y b  z </s>  \n", {104, 464, 464, 455, 228, 5, 442, 5, 162, 11, 116},
         "x <a>  <a> y b z </s>");
  // The model drops the space in front of y and puts one of its own there.
  EXPECT_TRUE(unigram.encode_with_offsets("x<a> y").offsets ==
              (std::vector<CharRange>{{0, 1}, {1, 4}, {5, 5}, {5, 6}}));
}

TEST(SentencePieceWrapper, KeepsExtraSpaces) {
  const Tokenizer kept = open("unigram", {}, false);
  expect(kept, "  two  spaces   x ", {5, 5, 5, 8, 453, 460, 5, 5, 11, 248, 126, 463, 11, 5, 5, 104, 5},
         "two  spaces   x ");
  expect(kept, "x<a><a> y b  z </s>  \n",
         {104, 436, 462, 138, 462, 116, 5, 455, 292, 5, 5, 442, 5, 162, 11, 116, 5, 5},
         "x<a><a> y b  z </s>  ");
  expect(kept, " ", {5}, "");
  expect(kept, "", {}, "");
  expect(kept, "\u262f a", {15}, "a");
  // Special tokens and marks for spaces at once: marks before a special token stay, as upstream has it.
  const Tokenizer both = open("unigram", {"<a>", "</s>"}, false);
  expect(both, "x<a><a> y b  z </s>  \n", {104, 464, 464, 455, 292, 5, 2, 5, 442, 1, 5, 5},
         "x <a>  <a> y b  \u2047  z </s>");
  // A model that keeps them itself is left alone.
  expect(open("bpe_llama", {}, false), "  two  spaces   x ",
         {505, 260, 633, 621, 614, 290, 629, 619, 346, 623, 505, 516, 614}, "  two  spaces   x ");
  EXPECT_NO_THROW(both.encode_with_offsets("\xff  \xe4<a> \xf0 "));
}

TEST(SentencePieceWrapper, IsToldInTheNamesOfCaches) {
  TokenizerOptions options;
  EXPECT_EQ(tokenizer_identifiers("Llama2Tokenizer", "m", options).at("legacy"), Json("False"));
  options.sentencepiece_legacy = true;
  options.ignore_extra_whitespaces = false;
  EXPECT_EQ(tokenizer_identifiers("Llama2Tokenizer", "m", options).at("legacy"), Json("True"));
  EXPECT_EQ(tokenizer_identifiers("Llama2Tokenizer", "m", options).at("ignore_extra_whitespaces"),
            Json("False"));
}

// The refusal of a tokenizer that cannot be made.
std::string refusal(const std::string& type, const std::string& path, const TokenizerOptions& options = {}) {
  try {
    make_tokenizer(type, path, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(TokenizerFiles, AreKnownByTheirContent) {
  TempDir dir;
  const Ids expected = make_tokenizer("SentencePieceTokenizer", model_of("unigram")).encode("hello x");
  for (const char* type : {"HuggingFaceTokenizer", "SFTTokenizer"}) {
    EXPECT_EQ(make_tokenizer(type, model_of("unigram")).encode("hello x"), expected);
    EXPECT_EQ(read_vocabulary_facts(type, model_of("unigram")).size, 464);
    write_text(dir / "ranks", "YQ== 0\nYg== 1\n");
    EXPECT_NE(refusal(type, dir / "ranks").find("use --tokenizer-type TikTokenizer"), std::string::npos);
    write_text(dir / "text", "hello");
    EXPECT_NE(refusal(type, dir / "text").find("malformed JSON"), std::string::npos);
  }
  write_text(dir / "t.json", " {}");
  EXPECT_NE(refusal("Llama2Tokenizer", dir / "t.json").find("use --tokenizer-type HuggingFaceTokenizer"),
            std::string::npos);
  TokenizerOptions options;
  options.special_tokens = {"<a>"};
  EXPECT_NE(refusal("Llama2Tokenizer", model_of("unigram"), options).find("add --tokenizer-sentencepiece-l"),
            std::string::npos);
}

// A run's rules say the same of --tokenizer-type HuggingFaceTokenizer, whatever the file holds.
TEST(TokenizerOptions, ThatATypeDoesNotReadAreRefused) {
  const auto refused = [](const std::string& type, const TokenizerOptions& options) {
    const std::string message = refusal(type, model_of("unigram"), options);
    EXPECT_NE(message.find("leave it out"), std::string::npos) << type << ": " << message;
    EXPECT_THROW(read_vocabulary_facts(type, model_of("unigram"), options), ConfigError) << type;
  };
  for (const char* type :
       {"HuggingFaceTokenizer", "SFTTokenizer", "GPT2BPETokenizer", "ByteLevelTokenizer"}) {
    refused(type, {.sentencepiece_legacy = true});
    refused(type, {.ignore_extra_whitespaces = false});
    if (std::string_view(type) != "HuggingFaceTokenizer") refused(type, {.special_tokens = {"<a>"}});
    refused(type, {.vocab_extra_ids = 3});
  }
  refused("SentencePieceTokenizer", {.vocab_extra_ids = 3});
  refused("TikTokenizer", {.sentencepiece_legacy = true});
}

TEST(TokenizerMetadata, SaysTheLibraryAndTheTemplate) {
  TempDir dir;
  const std::string file = dir / "m.json";
  write_text(file, R"({"library": "sentencepiece", "class_name": "MegatronTokenizerText",
                       "class_path": "megatron.core.tokenizers.text.text_tokenizer", "chat_template": "{{ x }}"})");
  EXPECT_EQ(read_tokenizer_metadata(file).chat_template, "{{ x }}");
  TokenizerOptions options;
  options.metadata = file;
  EXPECT_EQ(make_tokenizer("Llama2Tokenizer", model_of("unigram"), options).vocab_size(), 464);
  options.vocab_size = 8;
  EXPECT_EQ(refusal("NullTokenizer", "", options),
            fmt::format("--tokenizer-metadata {}: \"library\" is sentencepiece, expected null-text of "
                        "NullTokenizer; leave it out",
                        file));
  write_text(file, R"({"library": "sentencepiece", "class_name": "MyTokenizer"})");
  EXPECT_NE(refusal("Llama2Tokenizer", model_of("unigram"), options).find("none is run; remove it"),
            std::string::npos);
  write_text(file, "{}");
  EXPECT_NE(refusal("Llama2Tokenizer", model_of("unigram"), options).find("\"library\" is missing"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron
