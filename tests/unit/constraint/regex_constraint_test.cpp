#include <gtest/gtest.h>

#include <regex>

#include "megatron/base/error.h"
#include "unit/constraint/walk.h"

namespace megatron {
namespace {

void expect_language(const char* pattern, std::vector<const char*> good, std::vector<const char*> bad) {
  const SharedVocabulary vocabulary = test_vocabulary();
  const auto constraint = compile_regex(vocabulary, pattern);
  for (const char* text : good)
    EXPECT_TRUE(accepts(*constraint, *vocabulary, text)) << pattern << " of " << text;
  for (const char* text : bad)
    EXPECT_FALSE(accepts(*constraint, *vocabulary, text)) << pattern << " of " << text;
}

// An end token with bytes of its own would end texts where these bytes may stand.
TEST(RegexConstraint, EndTokensAreNoText) {
  const auto vocabulary = std::make_shared<const ConstraintVocabulary>(
      std::vector<std::string>{"a", "b", "<end>"}, std::vector<int64_t>{2}, 3);
  const auto state = compile_regex(vocabulary, "[ab<>den]{2}")->start();
  EXPECT_EQ(allowed_tokens(*state, 3), (std::vector<int64_t>{0, 1}));
  state->advance(0);
  EXPECT_EQ(allowed_tokens(*state, 3), (std::vector<int64_t>{0, 1}));
  state->advance(1);
  EXPECT_EQ(allowed_tokens(*state, 3), (std::vector<int64_t>{2}));
  const auto longer = compile_regex(vocabulary, ".*x")->start();
  EXPECT_EQ(allowed_tokens(*longer, 3), (std::vector<int64_t>{0, 1}));
}

TEST(RegexConstraint, Languages) {
  expect_language("abc", {"abc"}, {"", "ab", "abcd"});
  expect_language("^a|b$", {"a", "b"}, {"ab", ""});
  expect_language("a*b+c?", {"b", "aab", "bbc"}, {"a", "c", "bcc"});
  expect_language("(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab"});
  expect_language("[a-c]{2}|[^a-c]", {"ab", "x", "語"}, {"a", "abc", "xx"});
  expect_language("\\d+(\\.\\d{1,2})?", {"1", "12.5", "0.25"}, {".5", "1.", "1.234"});
  expect_language("[äö語]+", {"ä", "語ä"}, {"\xC3", "a", ""});
  expect_language(".", {"a", "語", "\xF0\x9F\x98\x80"}, {"\n", "\xC0\x80", "\xED\xA0\x80"});
  expect_language("(?:a|b)(?P<n>c)?", {"a", "bc"}, {"c"});
  expect_language("a{,2}", {"", "aa"}, {"aaa"});
  expect_language("\\p{Lu}\\W", {"Ä!", "A "}, {"aa", "Aa", "A語"});
  expect_language("x{2", {"x{2"}, {"xx"});
}

TEST(RegexConstraint, WhatIsNotRegularIsRefusedByName) {
  const SharedVocabulary vocabulary = test_vocabulary();
  for (auto [pattern, named] :
       std::vector<std::pair<const char*, const char*>>{{"(?=a)", "look-around"},
                                                        {"(a)\\1", "back-reference"},
                                                        {"\\bword", "word boundary"},
                                                        {"a++", "possessive"},
                                                        {"a^b", "anchor"},
                                                        {"(a", "'('"},
                                                        {"a)", "')'"},
                                                        {"[a", "'['"},
                                                        {"*a", "repeats nothing"},
                                                        {"a{3,2}", "wrong way"},
                                                        {"[\\uD800]", "no text"},
                                                        {"((a{9999}){9999}){99}", "states"}}) {
    try {
      compile_regex(vocabulary, pattern);
      ADD_FAILURE() << pattern;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << pattern << ": " << error.what();
    }
  }
}

TEST(RegexConstraint, RandomTextsMatch) {
  const SharedVocabulary vocabulary = test_vocabulary();
  for (const char* pattern : {"[a-z]+@[a-z]+\\.(com|org)", "(the|a) (cat|dog)( (the|a) (cat|dog))*",
                              "-?\\d{1,3}(,\\d{3})*", "\"[^\"]*\"(, \"[^\"]*\"){0,3}"}) {
    const auto constraint = compile_regex(vocabulary, pattern);
    const std::regex witness(pattern);
    int finished = 0;
    for (uint64_t seed = 0; seed < 60; ++seed)
      if (const auto text = random_text(*constraint, *vocabulary, seed)) {
        ++finished;
        EXPECT_TRUE(std::regex_match(*text, witness)) << pattern << " of " << *text;
      }
    EXPECT_GT(finished, 20) << pattern;
  }
}

// A mask is what reading the token byte by byte says, for every token and state of many texts.
TEST(RegexConstraint, MasksAreExact) {
  const SharedVocabulary vocabulary = test_vocabulary();
  const auto constraint = compile_regex(vocabulary, "(\\{\"(name|ab)\": ?(true|null|[0-9]{1,3})\\},? ?)+");
  std::mt19937_64 random(5);
  for (int walk = 0; walk < 4; ++walk) {
    auto state = constraint->start();
    std::string text;
    for (int i = 0; i < 16; ++i) {
      const std::vector<int64_t> tokens = allowed_tokens(*state, vocabulary->size);
      for (int64_t token = 0; token + 1 < vocabulary->size; ++token) {
        const bool allowed = std::ranges::find(tokens, token) != tokens.end();
        auto other = constraint->start();
        bool possible = true;
        for (char c : text + vocabulary->bytes[static_cast<size_t>(token)]) {
          const auto single = allowed_tokens(*other, 256);
          if (std::ranges::find(single, static_cast<uint8_t>(c)) == single.end()) {
            possible = false;
            break;
          }
          other->advance(static_cast<uint8_t>(c));
        }
        ASSERT_EQ(allowed, possible) << text << " + " << vocabulary->bytes[static_cast<size_t>(token)];
      }
      std::vector<int64_t> ways = tokens;
      std::erase(ways, vocabulary->end_tokens[0]);
      if (ways.empty()) break;
      const int64_t chosen = ways[random() % ways.size()];
      text += vocabulary->bytes[static_cast<size_t>(chosen)];
      state->advance(chosen);
    }
  }
}

TEST(Choices, OneOfThem) {
  const SharedVocabulary vocabulary = test_vocabulary();
  const auto constraint = compile_choices(vocabulary, {"yes", "yesterday", "no", "語"});
  for (const char* text : {"yes", "yesterday", "no", "語"})
    EXPECT_TRUE(accepts(*constraint, *vocabulary, text));
  for (const char* text : {"", "y", "yester", "none", "yes "})
    EXPECT_FALSE(accepts(*constraint, *vocabulary, text));
  EXPECT_THROW(compile_choices(vocabulary, {}), ConfigError);
}

}  // namespace
}  // namespace megatron
