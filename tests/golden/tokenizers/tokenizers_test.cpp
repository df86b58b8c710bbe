#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/tokenizers/make_tokenizer.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

const std::string kFolder = MEGATRON_GOLDEN_DIR "/tokenizers/";

std::vector<TokenId> ids_of(const Json& list) {
  std::vector<TokenId> ids;
  for (const Json& id : list.as_array()) ids.push_back(static_cast<TokenId>(id.as_int()));
  return ids;
}

std::vector<std::string> texts_of(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& text : list.as_array()) texts.push_back(text.as_string());
  return texts;
}

std::vector<CharRange> ranges_of(const Json& list) {
  std::vector<CharRange> ranges;
  for (const Json& pair : list.as_array())
    ranges.push_back({static_cast<uint32_t>(pair[0].as_int()), static_cast<uint32_t>(pair[1].as_int())});
  return ranges;
}

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (TokenId id : ids) {
    const std::string part = decoder.push(id);
    EXPECT_TRUE(tokenizers::is_utf8(part));
    text += part;
  }
  return text + decoder.finish();
}

// Without memory, with memory that has met every text before, and with places: always the same ids.
void expect_ids(const Tokenizer& tokenizer, Encoder& encoder, const std::string& text,
                const std::vector<TokenId>& ids, bool add_special_tokens = false) {
  EXPECT_EQ(tokenizer.encode(text, add_special_tokens), ids) << text;
  EXPECT_EQ(tokenizer.encode_with_offsets(text, add_special_tokens).ids, ids) << text;
  for (int round = 0; round < 2; ++round) {
    std::vector<TokenId> remembered;
    encoder.encode(text, remembered, add_special_tokens);
    EXPECT_EQ(remembered, ids) << text;
  }
}

class HuggingFace : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFace, EncodesAndDecodes) {
  const std::string folder = kFolder + GetParam();
  const Tokenizer tokenizer = make_tokenizer("HuggingFaceTokenizer", folder);
  Encoder encoder(tokenizer);
  const Json expected = Json::read(folder + "/expected.json");
  for (const Json& row : expected.at("cases").as_array()) {
    const std::string& text = row.at("text").as_string();
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    expect_ids(tokenizer, encoder, text, ids);
    expect_ids(tokenizer, encoder, text, ids_of(row.at("ids_special")), true);
    const Encoding encoding = tokenizer.encode_with_offsets(text);
    EXPECT_EQ(encoding.pieces, texts_of(row.at("tokens"))) << text;
    EXPECT_EQ(encoding.offsets, ranges_of(row.at("offsets"))) << text;
    EXPECT_EQ(tokenizer.decode(ids), row.at("decoded").as_string());
    EXPECT_EQ(tokenizer.decode(ids, true), row.at("decoded_skip").as_string());
    EXPECT_EQ(streamed(tokenizer, ids), row.at("decoded").as_string());
  }
  for (const Json& row : expected.at("decode_cases").as_array()) {
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    EXPECT_EQ(tokenizer.decode(ids), row.at("text").as_string());
    EXPECT_EQ(streamed(tokenizer, ids), row.at("text").as_string());
  }
}

// What training reads of a tokenizer is what the tokenizer itself says.
TEST(VocabularyFacts, AreThoseOfTheTokenizer) {
  const auto check = [](std::string_view type, const std::string& path,
                        const TokenizerOptions& options = {}) {
    SCOPED_TRACE(fmt::format("{} {}", type, path));
    const Tokenizer tokenizer = make_tokenizer(type, path, options);
    const VocabularyFacts facts = read_vocabulary_facts(type, path, options);
    EXPECT_EQ(facts.size, tokenizer.vocab_size());
    const SpecialIds a = facts.specials, b = tokenizer.special_ids();
    EXPECT_EQ(std::tie(a.bos, a.eos, a.eod, a.pad, a.unk, a.cls, a.sep, a.mask),
              std::tie(b.bos, b.eos, b.eod, b.pad, b.unk, b.cls, b.sep, b.mask));
    return facts;
  };
  for (const char* name :
       {"byte_bpe_gpt2", "byte_bpe_llama3", "byte_bpe_qwen2", "wordpiece_uncased", "wordpiece_cased"})
    check("HuggingFaceTokenizer", kFolder + name);
  const std::string words = kFolder + std::string("wordpiece_cased/vocab.txt");
  const int64_t plain = check("BertWordPieceCase", words).size;
  EXPECT_EQ(check("BertWordPieceCase", words, {.vocab_extra_ids = 100}).size, plain + 102);
  check("NullTokenizer", "", {.vocab_size = 77, .null_eod_id = 5, .null_pad_id = 6});
  check("ByteLevelTokenizer", "");
}

INSTANTIATE_TEST_SUITE_P(Golden, HuggingFace,
                         testing::Values("byte_bpe_gpt2", "byte_bpe_llama3", "byte_bpe_qwen2",
                                         "wordpiece_uncased", "wordpiece_cased"));

class BertVocabulary : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(BertVocabulary, EncodesAsItsTokenizerJson) {
  const std::string folder = kFolder + GetParam().second;
  const Tokenizer tokenizer = make_tokenizer(GetParam().first, folder + "/vocab.txt");
  const Json expected = Json::read(folder + "/expected.json");
  for (const Json& row : expected.at("cases").as_array()) {
    EXPECT_EQ(tokenizer.encode(row.at("text").as_string()), ids_of(row.at("ids")));
    EXPECT_EQ(tokenizer.encode(row.at("text").as_string(), true), ids_of(row.at("ids_special")));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, BertVocabulary,
                         testing::Values(std::pair("BertWordPieceLowerCase", "wordpiece_uncased"),
                                         std::pair("BertWordPieceCase", "wordpiece_cased")));

class SentencePiece : public testing::TestWithParam<const char*> {};

TEST_P(SentencePiece, EncodesAndDecodes) {
  const std::string folder = kFolder + GetParam();
  const Tokenizer tokenizer = make_tokenizer("SentencePieceTokenizer", folder + "/tokenizer.model");
  Encoder encoder(tokenizer);
  const Json expected = Json::read(folder + "/expected.json");
  const SpecialIds specials = tokenizer.special_ids();
  EXPECT_EQ(specials.bos, expected.at("bos").as_int());
  EXPECT_EQ(specials.eos, expected.at("eos").as_int());
  EXPECT_EQ(specials.pad, expected.at("pad").as_int());
  EXPECT_EQ(specials.unk, expected.at("unk").as_int());
  for (const Json& row : expected.at("cases").as_array()) {
    const std::string& text = row.at("text").as_string();
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    expect_ids(tokenizer, encoder, text, ids);
    expect_ids(tokenizer, encoder, text, ids_of(row.at("ids_bos_eos")), true);
    EXPECT_EQ(tokenizer.encode_with_offsets(text).pieces, texts_of(row.at("pieces"))) << text;
    EXPECT_EQ(tokenizer.decode(ids), row.at("decoded").as_string());
    EXPECT_EQ(streamed(tokenizer, ids), row.at("decoded").as_string());
  }
  for (const Json& row : expected.at("decode_cases").as_array())
    EXPECT_EQ(tokenizer.decode(ids_of(row.at("ids"))), row.at("text").as_string());
  const Json::Array& pieces = expected.at("pieces").as_array();
  ASSERT_EQ(tokenizer.vocab_size(), static_cast<int64_t>(pieces.size()));
  for (size_t i = 0; i < pieces.size(); ++i)
    EXPECT_EQ(tokenizer.piece_of(static_cast<TokenId>(i)), pieces[i][0].as_string());
}

INSTANTIATE_TEST_SUITE_P(Golden, SentencePiece,
                         testing::Values("sentencepiece_bpe_llama", "sentencepiece_bpe_gemma",
                                         "sentencepiece_unigram"));

class Tiktoken : public testing::TestWithParam<const char*> {};

TEST_P(Tiktoken, EncodesAndDecodes) {
  const std::string name = GetParam();
  const std::string folder = kFolder + "tiktoken_" + name + "_like";
  const Json expected = Json::read(folder + "/expected.json");
  TokenizerOptions options{.tiktoken_pattern = name};
  const Tokenizer ordinary = make_tokenizer("TikTokenizer", folder + "/vocab.tiktoken", options);
  for (const auto& [token, id] : expected.at("special_tokens").as_object())
    options.special_tokens.push_back(token + "=" + std::to_string(id.as_int()));
  const Tokenizer tokenizer = make_tokenizer("TikTokenizer", folder + "/vocab.tiktoken", options);
  Encoder encoder(tokenizer), ordinary_encoder(ordinary);
  EXPECT_EQ(tokenizer.vocab_size(), expected.at("n_vocab").as_int());
  for (const Json& row : expected.at("cases").as_array()) {
    const std::string& text = row.at("text").as_string();
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    expect_ids(ordinary, ordinary_encoder, text, ids);
    expect_ids(tokenizer, encoder, text, ids_of(row.at("ids_allowed_special")));
    EXPECT_EQ(ordinary.decode(ids), row.at("decoded").as_string());
    EXPECT_EQ(streamed(tokenizer, ids), row.at("decoded").as_string());
  }
  for (const Json& row : expected.at("decode_cases").as_array()) {
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    EXPECT_EQ(tokenizer.decode(ids), row.at("text_replace").as_string());
    EXPECT_EQ(streamed(tokenizer, ids), row.at("text_replace").as_string());
  }
  for (const Json& row : expected.at("raw_bytes").as_array()) {
    const std::string bytes = bytes_of_hex(row.at("bytes").at("hex").as_string());
    EXPECT_EQ(tokenizer.decode(ids_of(row.at("single_bytes_ids"))), tokenizers::to_utf8_lossy(bytes));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Tiktoken, testing::Values("cl100k", "o200k"));

}  // namespace
}  // namespace megatron
