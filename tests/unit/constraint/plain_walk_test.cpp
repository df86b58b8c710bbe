// Masks against the plain walk: each token of the vocabulary read byte by byte, for random regular
// expressions and schemas over random vocabularies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "megatron/base/error.h"
#include "megatron/inference/constraint/grammar_constraint.h"
#include "megatron/inference/constraint/grammar_path.h"
#include "megatron/inference/constraint/json_schema.h"
#include "megatron/inference/constraint/regex_grammar.h"
#include "unit/constraint/walk.h"

namespace megatron {
namespace {

using Random = std::mt19937_64;

template <class Items>
auto one_of(Random& random, const Items& items) {
  return *(std::begin(items) + static_cast<ptrdiff_t>(random() % std::size(items)));
}

// Words, marks and parts of characters; some tokens twice, some empty, some longer than runs usually are, and
// ends that have bytes of their own. Masks may have more rows than there are tokens, or fewer.
SharedVocabulary random_vocabulary(Random& random) {
  std::vector<std::string> bytes;
  const uint64_t kept = 1 + random() % 10;  // in ten
  for (int byte = 0; byte < 256; ++byte)
    bytes.emplace_back(random() % 10 < kept || byte < 128 ? std::string(1, static_cast<char>(byte)) : "");
  const char* const pieces[] = {
      "a", "b", "e", "n",  "z",  "0",  "1",  "9",  "A",      " ",    " ",    "\"",       "\\",  "{",
      "}", ":", ",", "[",  "]",  "-",  "_",  ".",  "@",      "\n",   "ä",    "語",       "語",  "😀",
      "й", "—", "u", "d8", "\t", "na", "me", "ab", "\": \"", "\xE8", "\xAA", "\xF0\x9F", "\xC3"};
  const bool is_large = random() % 4 == 0;  // enough for rows of bits
  for (size_t n = is_large ? 1500 : random() % 300; n > 0; --n) {
    std::string text;
    const bool letters = random() % 3 > 0;
    for (size_t length = random() % (random() % 16 == 0 ? 24 : 6); length > 0; --length)
      text += letters && random() % 8 > 0 ? std::string(1, one_of(random, std::string("abenz")))
                                          : one_of(random, pieces);
    // Cut anywhere: parts of characters at both ends.
    if (random() % 4 == 0 && text.size() > 1) text = text.substr(random() % 2, text.size() - random() % 2);
    bytes.push_back(text);
  }
  std::shuffle(bytes.begin(), bytes.end(), random);
  bytes.push_back(random() % 2 ? "<end>" : "");
  bytes.push_back(random() % 2 ? "a" : "");
  const auto count = static_cast<int64_t>(bytes.size());
  const int64_t size =
      count + static_cast<int64_t>(random() % 3) * 20 - 10 * static_cast<int64_t>(random() % 2);
  return std::make_shared<const ConstraintVocabulary>(std::move(bytes),
                                                      std::vector<int64_t>{count - 1, count - 2, 5}, size);
}

std::string random_regex(Random& random, int depth) {
  static const char* const classes[] = {
      "[a-z]",    "[a-z ]", "\\w", ".",  "[^\"\\\\]", "\\d",   "[a-z0-9-]", "\\p{L}", "[語-誟ä]", "[^a-e]",
      "[\\s\\S]", "a",      "語",  "\"", "[ \\t]",    "[aeb]", "\\p{Lu}",   "[—😀]",   "ab",       "[^語]"};
  static const char* const counts[] = {"*", "+", "?", "{3}", "{2,5}", "{0,40}", "{10,}", "{1,20}", "{12,30}"};
  std::string text;
  for (size_t n = 1 + random() % 3; n > 0; --n) {
    std::string part = depth == 0 || random() % 2 ? one_of(random, classes)
                       : random() % 3 == 0        ? "(" + random_regex(random, depth - 1) + "|" +
                                                 random_regex(random, depth - 1) + ")"
                                           : "(" + random_regex(random, depth - 1) + ")";
    if (part != "ab" && random() % 3 > 0) part += one_of(random, counts);
    text += part;
  }
  return text;
}

std::string random_schema(Random& random, int depth) {
  static const char* const leaves[] = {R"({"type":"string"})",
                                       R"({"type":"string","minLength":2,"maxLength":30})",
                                       R"({"type":"integer"})",
                                       R"({"type":"number","minimum":0})",
                                       R"({"enum":["a","ab","name",null,"語"]})",
                                       R"({"type":"string","format":"email"})",
                                       R"({"type":"string","pattern":"[a-z]{3}"})",
                                       R"({"type":"string","pattern":"^[a-e語]{2,9}$"})",
                                       R"(true)",
                                       R"({"type":"string","maxLength":3})",
                                       R"({"type":"object"})",
                                       R"({"$ref":"#"})"};
  const auto below = [&] { return random_schema(random, depth - 1); };
  if (depth > 0 && random() % 3 > 0) {
    if (random() % 3 == 0)
      return R"({"type":"array","items":)" + below() +
             one_of(random, std::vector<std::string>{"}", R"(,"maxItems":4})", R"(,"minItems":1})"});
    if (random() % 4 == 0) return R"({"anyOf":[)" + below() + R"(,{"type":"null"},)" + below() + "]}";
    return R"({"type":"object","properties":{"name":)" + below() + R"(,"na":)" + below() + "}" +
           one_of(random,
                  std::vector<std::string>{"}", R"(,"required":["na"]})", R"(,"additionalProperties":false})",
                                           R"(,"additionalProperties":{"type":"string"}})"});
  }
  return one_of(random, leaves);
}

// Follows some texts. An error of `make` is a grammar that is not supported, and compares nothing.
int compare(Random& random, const std::string& subject, const std::function<Grammar::Part(Grammar&)>& make) {
  Grammar grammar;
  try {
    const int root = grammar.declare_rule();
    grammar.define_rule(root, make(grammar));
    grammar.finish(root, "grammar");
  } catch (const Error&) {
    return 0;
  }
  const SharedVocabulary vocabulary = random_vocabulary(random);
  const auto constraint = make_grammar_constraint(grammar, vocabulary);
  const auto is_end = [&](int64_t token) {
    return std::ranges::find(vocabulary->end_tokens, token) != vocabulary->end_tokens.end();
  };
  int compared = 0;
  for (int text = 0; text < 2; ++text) {
    const auto state = constraint->start();
    GrammarPaths paths = first_paths(grammar);
    std::string written;
    // Where there are very many readings some are dropped, and which ones depends on the order.
    constexpr size_t kMany = 60;
    for (int step = 0; step < 10 && paths.size() < kMany; ++step) {
      std::vector<int64_t> expected, unsure;
      const bool ends =
          std::ranges::any_of(paths, [](const auto& path) { return path.node == GrammarPath::kLeft; });
      for (int64_t token = 0; token < vocabulary->size; ++token) {
        const bool is_known = token < std::ssize(vocabulary->bytes);
        const std::string bytes = is_known ? vocabulary->bytes[static_cast<size_t>(token)] : "";
        GrammarPaths behind = paths;
        size_t most = 0;
        for (char c : bytes) {
          if (!behind.empty()) behind = read_byte(grammar, behind, static_cast<uint8_t>(c));
          most = std::max(most, behind.size());
        }
        if (most >= kMany) unsure.push_back(token);
        if (is_end(token) ? ends : !bytes.empty() && !behind.empty()) expected.push_back(token);
      }
      ++compared;
      const std::vector<int64_t> allowed = allowed_tokens(*state, vocabulary->size);
      std::vector<int64_t> wrong;
      std::ranges::set_symmetric_difference(allowed, expected, std::back_inserter(wrong));
      std::erase_if(wrong, [&](int64_t token) { return std::ranges::find(unsure, token) != unsure.end(); });
      for (int64_t token : wrong)
        ADD_FAILURE() << subject << "\nbehind: " << written << "\ntoken " << token << ": '"
                      << vocabulary->bytes[static_cast<size_t>(token)] << "'";
      if (!wrong.empty()) return compared;
      std::erase_if(expected, [&](int64_t token) { return is_end(token); });
      if (expected.empty()) break;
      const int64_t chosen = one_of(random, expected);
      state->advance(chosen);
      for (char c : vocabulary->bytes[static_cast<size_t>(chosen)])
        paths = read_byte(grammar, paths, static_cast<uint8_t>(c));
      written += vocabulary->bytes[static_cast<size_t>(chosen)];
    }
  }
  return compared;
}

int rounds() {
  const char* times = std::getenv("MEGATRON_FUZZ_TIMES");
  return 60 * (times ? std::atoi(times) : 1);
}

TEST(PlainWalk, RegularExpressions) {
  int compared = 0;
  for (int i = 0; i < rounds() && !HasFailure(); ++i) {
    Random random(static_cast<uint64_t>(i));
    const std::string pattern = random_regex(random, 2);
    compared += compare(random, pattern, [&](Grammar& grammar) {
      return regex_part(
          grammar, pattern, [&](const Grammar::Points& points) { return grammar.character(points); }, false);
    });
  }
  EXPECT_GT(compared, rounds() * 5);
}

TEST(PlainWalk, Schemas) {
  int compared = 0;
  for (int i = 0; i < rounds() && !HasFailure(); ++i) {
    Random random(static_cast<uint64_t>(i) + 1'000'000);
    const std::string schema = random_schema(random, 2);
    compared += compare(random, schema, [&](Grammar& grammar) {
      JsonGrammar json(grammar);
      return json_schema_part(grammar, json, Json::parse(schema));
    });
  }
  EXPECT_GT(compared, rounds() * 5);
}

}  // namespace
}  // namespace megatron
