#include "megatron/tokenizers/word_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "megatron/tokenizers/bert_characters.h"
#include "megatron/tokenizers/pre_tokenizers/pre_tokenizer.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

// Words that never come again, of every length and with few and many ids, one kind after the other and mixed.
TEST(WordMemory, IsBounded) {
  std::mt19937_64 random(5);
  for (const size_t budget : {size_t{1} << 20, size_t{24} << 20, Encoder::kDefaultMemory}) {
    WordMemory memory(budget);
    size_t most = 0;
    uint64_t number = 0;
    std::vector<TokenId> ids;
    const auto add = [&](size_t length, size_t count) {
      std::string word(length, 'x');
      ++number;
      std::memcpy(word.data(), &number, std::min(length, sizeof(number)));
      ids.clear();
      memory.remember(word, word.size(), false, ids,
                      [&](std::vector<TokenId>& made) { made.resize(made.size() + count, 7); });
      ASSERT_EQ(ids.size(), count);
      if (number % 64 == 0) most = std::max(most, memory.bytes());
    };
    for (size_t i = 0; i < budget / 80; ++i) add(8 + i % 8, 1 + i % 3);
    for (size_t i = 0; i < budget / 160; ++i) add(16 + i % 16, 1 + i % 7);
    for (size_t i = 0; i < budget / 300; ++i) add(32 + i % 225, 1 + i % 9);
    for (size_t i = 0; i < budget / 200; ++i) add(8 + i % 24, 15 + i % 16);
    for (size_t i = 0; i < budget / 300; ++i) add(8 + random() % 249, 1 + random() % 40);
    EXPECT_LE(most, budget / 3 * 4 + (budget < size_t{2} << 20 ? 400'000 : 0)) << budget;
    EXPECT_GE(most, budget / 2) << budget;  // it takes what it is given
  }
  EXPECT_LE(Encoder::kDefaultMemory / 3 * 4, size_t{256} << 20);
}

TEST(WordMemory, GivesBackWhatALongWordTook) {
  WordMemory memory(1 << 20);
  const size_t before = memory.bytes();
  memory.symbols.resize(1 << 20);
  memory.release_scratch();
  EXPECT_EQ(memory.bytes(), before);
}

// Characters are looked at one by one; the normalizer and the pre-tokenizer see the whole text.
TEST(BertMemory, FindsTheWordsOfTheWholeText) {
  const auto pre_tokenizer = make_pre_tokenizer(Json::parse(R"({"type": "BertPreTokenizer"})"));
  std::mt19937 random(6);
  for (const bool strip : {true, false})
    for (const bool others : {true, false}) {
      Json settings = Json::object();
      settings["type"] = "BertNormalizer";
      settings["clean_text"] = others;
      settings["handle_chinese_chars"] = others;
      settings["strip_accents"] = strip;
      settings["lowercase"] = others;
      const auto normalizer = make_normalizer(settings);
      BertMemory memory(1 << 20, normalizer.get(), strip);
      int depends = 0, total = 0;
      const auto check = [&](const std::string& text) {
        std::vector<std::string> words, expected;
        ++total;
        if (!memory.words(text, [&](std::string_view word) { words.emplace_back(word); })) {
          ++depends;
          return;
        }
        AlignedText whole(text, 0, false);
        normalizer->apply(whole);
        Section section{whole, {{0, static_cast<uint32_t>(whole.text().size())}}};
        if (!whole.text().empty()) pre_tokenizer->apply(section);
        for (const ByteRange& word : section.words)
          if (word.end > word.begin) expected.emplace_back(section.text.view(word));
        ASSERT_EQ(words, expected) << text;
      };
      const auto any_point = [&] {
        const char32_t point = random() % (random() % 2 ? 0x3100 : 0x10000);
        return point >= 0xD800 && point < 0xE000 ? char32_t{0x0301} : point;
      };
      for (char32_t point = 0; point < 0x10000; ++point) {
        if (point >= 0xD800 && point < 0xE000) continue;
        std::string text = "Ab";
        append_utf8(text, point);
        text += "c";
        append_utf8(text, any_point());
        check(text);
      }
      EXPECT_LT(depends, total / 50);
      for (int round = 0; round < 10000; ++round) {
        std::string text;
        for (size_t i = 1 + random() % 12; i > 0; --i) append_utf8(text, any_point());
        check(text);
      }
    }
}

}  // namespace
}  // namespace megatron::tokenizers
