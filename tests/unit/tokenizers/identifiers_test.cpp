#include "megatron/tokenizers/identifiers.h"

#include <gtest/gtest.h>

// Expected are the descriptions that Megatron-LM wrote into its index caches
// (tests/upstream/megatron_data.py).
namespace megatron {
namespace {

const std::string kBegin =
    R"({"class": "megatron.core.tokenizers.text.text_tokenizer.MegatronTokenizerText", "tokenizer_path": )";

void expect(std::string_view type, const std::string& path, const TokenizerOptions& options,
            const std::string& rest) {
  EXPECT_EQ(tokenizer_identifiers(type, path, options), Json::parse(kBegin + rest)) << type;
  // The order of the keys is part of the name.
  EXPECT_EQ(tokenizer_identifiers(type, path, options).dump(), Json::parse(kBegin + rest).dump()) << type;
}

TEST(TokenizerIdentifiers, AreMegatrons) {
  expect("HuggingFaceTokenizer", "dir", {},
         R"("dir", "chat_template": "None", "vocab_file": "None", "merges_file": "None",
            "additional_special_tokens": "[]", "use_fast": "True", "trust_remote_code": "False",
            "include_special_tokens": "True", "use_gigatoken": "False"})");
  expect("GPTSentencePieceTokenizer", "bpe.model", {},
         R"("bpe.model", "chat_template": "None", "ignore_extra_whitespaces": "True", "legacy": "False",
            "special_tokens": "None"})");
  expect("TikTokenizer", "t.json",
         {.vocab_size = 420,
          .tiktoken_pattern = "v2",
          .tiktoken_num_special_tokens = 20,
          .special_tokens = {"<unk>", "it's"}},
         R"("t.json", "chat_template": "None", "pattern": "v2", "vocab_size": "420",
            "num_special_tokens": "20", "special_tokens": "['<unk>', \"it's\"]"})");
  expect("NullTokenizer", "", {.vocab_size = 1000}, R"(null, "vocab_size": "1000", "pad_id": "-1"})");
  expect("GPT2BPETokenizer", "", {.vocab_file = "v.json", .merge_file = "m.txt"},
         R"("GPT2BPETokenizer", "additional_special_tokens": "[]", "vocab_file": "v.json",
            "merges_file": "m.txt", "use_fast": "True", "trust_remote_code": "False",
            "include_special_tokens": "True", "use_gigatoken": "False"})");
}

TEST(TokenizerIdentifiers, HoldWhetherSpecialTokensAreAdded) {
  const Json json = tokenizer_identifiers("HuggingFaceTokenizer", "dir", {.include_special_tokens = false});
  EXPECT_EQ(json.at("include_special_tokens").as_string(), "False");
}

TEST(TokenizerIdentifiers, HoldTheChatTemplate) {
  const Json json = tokenizer_identifiers("HuggingFaceTokenizer", "dir", {}, "{{ messages }}");
  EXPECT_EQ(json.at("chat_template").as_string(), "{{ messages }}");
}

}  // namespace
}  // namespace megatron
