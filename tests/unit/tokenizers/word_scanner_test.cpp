#include "megatron/tokenizers/word_scanner.h"

#include <gtest/gtest.h>

#include <random>

#include "megatron/base/error.h"
#include "megatron/tokenizers/regex/regex.h"
#include "megatron/tokenizers/tiktoken_tokenizer.h"
#include "megatron/tokenizers/unicode/utf8.h"
#include "megatron/tokenizers/word_windows.h"

namespace megatron::tokenizers {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> words(std::string_view pattern, const std::string& text) {
  const WordRules rules = WordRules::of(pattern).value();
  std::vector<std::string> result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = word_end(rules, text.data(), at, text.size());
    result.push_back(text.substr(at, end - at));
    at = end;
  }
  return result;
}

using Words = std::vector<std::string>;

TEST(WordScanner, Gpt2) {
  EXPECT_EQ(words(kGpt2, "Hello world's  12 a!?\n"),
            (Words{"Hello", " world", "'s", " ", " 12", " a", "!?", "\n"}));
  EXPECT_EQ(words(kGpt2, "'S x'"), (Words{"'", "S", " x", "'"}));
}

TEST(WordScanner, Llama3AndQwen2) {
  EXPECT_EQ(words(kLlama3, "I'LL pay $12345!\n\n  ok"),
            (Words{"I", "'LL", " pay", " $", "123", "45", "!\n\n", " ", " ok"}));
  EXPECT_EQ(words(kQwen2, "12 \n x"), (Words{"1", "2", " \n", " x"}));
  EXPECT_EQ(words(kLlama3, "it'\u017f"), (Words{"it", "'\u017f"}));  // the long s is an s in any case
}

TEST(WordScanner, O200k) {
  EXPECT_EQ(words(tiktoken_pattern("o200k"), "HTTPServer don't /path//\n ABC"),
            (Words{"HTTPServer", " don't", " /", "path", "//\n", " ABC"}));
}

TEST(WordScanner, OtherPatternsAreNotKnown) {
  EXPECT_FALSE(WordRules::of(R"(\s+)"));
  EXPECT_FALSE(WordRules::of(R"(\p{N}{1,3}+)"));
  EXPECT_FALSE(WordRules::of(tiktoken_pattern("cl100k")));  // as Hugging Face reads {1,3}+
  EXPECT_TRUE(WordRules::of(tiktoken_pattern("cl100k"), true));
  EXPECT_TRUE(WordRules::of(tiktoken_pattern("v1")));
  EXPECT_TRUE(WordRules::of(tiktoken_pattern("v2")));
}

// The scanner and the regular expression are two implementations of the same pattern.
TEST(WordScanner, AgreesWithTheRegularExpression) {
  const std::string_view alphabet[] = {
      "a",      "Z",  "'",      "s",          "LL",         "1",      "\u00bd", " ",      "\n",     "\r",
      "\t",     "/",  "!",      "\u0301",     "\u4f60",     "\u00e9", "\u01c5", "\u02b0", "\u3000", "\u0660",
      "\u200b", "'t", "\u017f", "\U0001f600", "\U0001d518", "\u00a0", "\u0130", "\uac00"};
  std::mt19937 random(1);
  for (std::string_view pattern :
       {kGpt2, kLlama3, kQwen2, tiktoken_pattern("o200k"), tiktoken_pattern("v1"), tiktoken_pattern("v2")}) {
    const Regex regex(pattern);
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (size_t i = random() % 12; i > 0; --i) text += alphabet[random() % std::size(alphabet)];
      Words expected;
      for (const ByteRange& match : regex.find_all(text))
        expected.push_back(text.substr(match.begin, match.end - match.begin));
      ASSERT_EQ(words(pattern, text), expected) << text << "\n" << pattern;
    }
  }
}

Words words_of_windows(const WordRules& rules, const std::string& text) {
  const ScannedText scanned{text.data(), text.size()};
  std::vector<size_t> begins;
  WordWindows<WordRules> windows(rules, scanned);
  size_t found[64];
  while (windows.more()) begins.insert(begins.end(), found, found + windows.next(found));
  size_t rest = begins.empty() ? 0 : begins.back();
  Words result;
  for (size_t i = 0; i + 1 < begins.size(); ++i)
    result.push_back(text.substr(begins[i], begins[i + 1] - begins[i]));
  while (rest < text.size()) {
    const size_t end = word_end(rules, text.data(), rest, text.size());
    result.push_back(text.substr(rest, end - rest));
    rest = end;
  }
  return result;
}

// Windows of 64 bytes find the words that the scanner finds one by one, whatever stands at their borders.
TEST(WordWindows, AgreeWithTheScanner) {
  const std::string_view alphabet[] = {
      "a",       "Zb",     "don't",      "'ll",        "'",      "'S",     "'\u017f", "1",
      "12",      "345678", " ",          "  ",         "\n",     "\r\n",   "\t",      "\n  ",
      " \n \n ", "!",      "--",         ";\n\n",      "\u0301", "\u4f60", "\u3002",  "\u00e9",
      "\u3000",  "\u00a0", "\u0660",     "\u00bd",     "\u2028", "\u200b", "/",       "\u2014",
      " x",      " (",     "\U0001f600", "\U0001d518", "\uac00", "word",   "Words",   "    "};
  std::mt19937 random(2);
  const auto cl100k = WordRules::of(tiktoken_pattern("cl100k"), true).value();
  for (const WordRules& rules :
       {WordRules::of(kGpt2).value(), WordRules::of(kLlama3).value(), WordRules::of(kQwen2).value(), cl100k,
        WordRules::of(tiktoken_pattern("v1")).value()}) {
    ASSERT_TRUE(WordWindows<WordRules>::knows(rules));
    for (int round = 0; round < 4000; ++round) {
      // A few of the alphabet at a time, so that the same ones meet often.
      std::string_view some[5];
      for (std::string_view& piece : some) piece = alphabet[random() % std::size(alphabet)];
      std::string text;
      for (size_t i = random() % 120; i > 0; --i) text += some[random() % std::size(some)];
      Words expected;
      for (size_t at = 0; at < text.size();) {
        const size_t end = word_end(rules, text.data(), at, text.size());
        expected.push_back(text.substr(at, end - at));
        at = end;
      }
      ASSERT_EQ(words_of_windows(rules, text), expected) << text;
    }
  }
  EXPECT_FALSE(WordWindows<WordRules>::knows(WordRules::of(tiktoken_pattern("o200k")).value()));
}

Words matches(std::string_view pattern, const std::string& text) {
  Words result;
  for (const ByteRange& match : Regex(pattern).find_all(text))
    result.push_back(text.substr(match.begin, match.end - match.begin));
  return result;
}

TEST(Regex, Matches) {
  EXPECT_EQ(matches("a|ab", "abab"), (Words{"a", "a"}));  // the first alternative, not the longest
  EXPECT_EQ(matches("ab??b", "abb"), (Words{"ab"}));
  EXPECT_EQ(matches("a++b|a", "aab aa"), (Words{"aab", "a", "a"}));
  EXPECT_EQ(matches(R"(\d(?=\d\b))", "12 345"), (Words{"1", "4"}));
  EXPECT_EQ(matches(R"((?<=x)\w|(?<!\w)y)", "xa by y"), (Words{"a", "y"}));
  EXPECT_EQ(matches("(?i:straße|K)", "STRAßE \u212a"), (Words{"STRAßE", "\u212a"}));
  EXPECT_EQ(matches(R"([^\P{L}a-c\]]+)", "abcd]e1"), (Words{"d", "e"}));
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Lu}]]+)", "aBc"), (Words{"a", "c"}));
  EXPECT_EQ(matches("(?:ab){2,3}?", "abababab"), (Words{"abab", "abab"}));
  EXPECT_EQ(matches(R"(\p{Han}+|\x{e9}|\u0041)", "A漢字é"), (Words{"A", "漢字", "é"}));
  EXPECT_EQ(matches("a{1,2}+", "aaaaa"), (Words{"aaaaa"}));                       // as Oniguruma reads it
  EXPECT_EQ(matches(R"(\w[\w]?)", "\u00bd\u00bd"), (Words{"\u00bd", "\u00bd"}));  // as Oniguruma counts words
  EXPECT_EQ(matches("x*", "ax"), (Words{"", "x"}));                               // none behind a match
}

TEST(Regex, RefusesWhatItDoesNotKnow) {
  for (const char* pattern : {"(", ")", "[a", "(?<name>a)", R"(\p{Klingon})", R"(\q)", "*a", R"(\1)", "[b-a]",
                              "(?:a?)*", "(?<=ab)c"})
    EXPECT_THROW(Regex{pattern}, Error) << pattern;
  std::string deep;
  for (int i = 0; i < 200000; ++i) deep += '(';
  EXPECT_THROW(Regex{deep}, Error);
}

TEST(Regex, EndlessBacktrackingIsAnError) {
  EXPECT_THROW(Regex("(?:a+b?)+c").find_all(std::string(3000, 'a')), Error);
}

}  // namespace
}  // namespace megatron::tokenizers
