// Spoiled files: an Error or a tokenizer that works, never a crash.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "fuzz/mutate.h"
#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/tokenizers/hf_tokenizer.h"
#include "megatron/tokenizers/sentencepiece/sp_tokenizer.h"
#include "megatron/tokenizers/tiktoken_tokenizer.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

const std::string kFolder = MEGATRON_GOLDEN_DIR "/tokenizers/";

void use(const Tokenizer& tokenizer) {
  for (const char* text :
       {"Hello world's 123", "\u4f60\u597d\u3002 e\u0301 \U0001f600\n", "\xff\xe4<s>", ""}) {
    const auto ids = tokenizer.encode(text, true);
    EXPECT_TRUE(is_utf8(tokenizer.encode_with_offsets(text).ids.empty() ? "" : tokenizer.piece_of(0)));
    try {
      EXPECT_TRUE(is_utf8(tokenizer.decode(ids)));
    } catch (const ConfigError&) {  // a template may name ids that the vocabulary lacks
    }
  }
}

template <class Load>
void spoil(std::vector<std::string> texts, std::vector<std::string> words, int count, Load load) {
  testing::Mutator mutator(7, std::move(texts), std::move(words));
  int taken = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    const std::string text = mutator.next();
    try {
      use(load(text));
      ++taken;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(refused, 0);
}

struct SpoiledJson {
  // Small documents, so that changes hit what matters.
  std::vector<std::string> texts = {
      R"json({"added_tokens":[{"id":3,"content":"<s>","special":true,"normalized":false}],"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "}]},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]}}},"decoder":{"type":"Metaspace"},"model":{"type":"BPE","unk_token":"u","byte_fallback":true,"vocab":{"H":0,"e":1,"He":2,"<s>":3,"u":4},"merges":[["H","e"]]}})json",
      R"json({"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"BertProcessing","sep":["S",1],"cls":["C",0]},"decoder":{"type":"WordPiece"},"model":{"type":"WordPiece","unk_token":"U","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"C":0,"S":1,"U":2,"hello":3,"##s":4}}})json",
      R"json({"truncation":{"max_length":3,"direction":"Left"},"padding":{"strategy":{"Fixed":5},"pad_id":0},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"[^\\P{L}x]+|a(?!b)"},"behavior":"MergedWithNext","invert":true},"model":{"type":"Unigram","unk_id":0,"vocab":[["u",0.0],["H",-1.5],["el",-2.0]]}})json"};
  std::vector<std::string> words = {"null",    "-1",   "1e99", "\"\"",  "[]",    "{}",
                                    "4194304", "true", "(?",   "{9,1}", "\\\\p{"};
};

TEST(MalformedFiles, TokenizerJson) {
  spoil(SpoiledJson().texts, SpoiledJson().words, 3000, [](const std::string& text) {
    return Tokenizer(std::make_shared<HfTokenizer>(TokenizerJson::parse(text, "spoiled"), SpecialIds{}));
  });
}

// Pieces and merges that are read straight from the text mean what they do as values.
TEST(MalformedFiles, TokenizerJsonReadBothWays) {
  testing::Mutator mutator(11, SpoiledJson().texts, SpoiledJson().words);
  const auto outcome = [](auto make) -> std::string {
    try {
      const Tokenizer tokenizer(std::make_shared<HfTokenizer>(make(), SpecialIds{}));
      return fmt::format("{} {}", tokenizer.vocab_size(), fmt::join(tokenizer.encode("He Hex <s>u"), " "));
    } catch (const Error& error) {
      return error.what();
    }
  };
  int apart = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = mutator.next();
    try {
      apart += TokenizerJson::parse(text, "spoiled").bpe.has_value();
    } catch (const Error&) {
    }
    ASSERT_EQ(outcome([&] { return TokenizerJson::parse(text, "spoiled"); }),
              outcome([&] { return TokenizerJson(Json::parse(text, "spoiled")); }))
        << text;
  }
  EXPECT_GT(apart, 20);
}

TEST(MalformedFiles, SentencePiece) {
  std::vector<std::string> texts;
  for (const char* name : {"sentencepiece_bpe_gemma", "sentencepiece_unigram"})
    texts.push_back(read_text_file(kFolder + name + "/tokenizer.model"));
  spoil(
      std::move(texts), {std::string(4, '\0'), "\xff\xff\xff\x7f", "\n\x00"}, 300,
      [](const std::string& text) {
        return Tokenizer(std::make_shared<SpTokenizer>(SentencePieceFile::parse(text, "spoiled"), "spoiled"));
      });
}

TEST(MalformedFiles, Tiktoken) {
  const std::vector<std::string> texts = {read_text_file(kFolder + "tiktoken_o200k_like/vocab.tiktoken")};
  spoil(texts, {"\n", " ", "=", "4194304", "99999999999"}, 300, [](const std::string& text) {
    return Tokenizer(std::make_shared<TiktokenTokenizer>(read_tiktoken_file(text, "spoiled"),
                                                         tiktoken_pattern("o200k"), 0,
                                                         std::vector<AddedToken>{}, SpecialIds{}));
  });
}

}  // namespace
}  // namespace megatron::tokenizers
