// Writes texts under the masks of JSON schemas, for schema_check.py. Each line of the input is a schema; each
// line of the output is an array of texts, or {"error": …}. Tokens are bytes and some longer texts.
#include <fmt/core.h>

#include <iostream>

#include "megatron/base/error.h"
#include "unit/constraint/walk.h"

int main(int count, char** words) {
  using namespace megatron;
  const uint64_t texts = count > 1 ? std::stoull(words[1]) : 50;
  const SharedVocabulary vocabulary = test_vocabulary();
  for (std::string line; std::getline(std::cin, line);) {
    Json answer = Json::array();
    try {
      const auto constraint = compile_json_schema(vocabulary, Json::parse(line));
      for (uint64_t seed = 0; seed < texts; ++seed)
        if (const auto text = random_text(*constraint, *vocabulary, seed)) answer.push_back(*text);
    } catch (const std::exception& error) {
      answer = Json::object();
      answer["error"] = std::string(error.what());
    }
    fmt::print("{}\n", answer.dump());
  }
  return 0;
}
