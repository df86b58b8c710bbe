#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "megatron/inference/constraint/compile.h"

namespace megatron {

// Every byte is a token, and so are some texts that cross the borders of JSON's pieces; the last token ends a
// text.
inline SharedVocabulary test_vocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* text :
       {"{\"", "\":",   "\": ", "\",",   "\", \"", "\"}",    "\"}}",   "},",        "}, {", "]]",
        "[[",  "[{\"",  "true", "false", "null",   " true",  "null}",  "12",        "123",  "0.",
        "-1",  "1e",    "\n",   "\n  ",  "  ",     "name",   "\"name", "\"name\":", "abc",  "ab\"",
        "ä",   "ö\"",   "語",   "\\n",   "\\u",    "00",     "\\\"",   "a",         "the",  " the",
        "\"a", "\"b\"", "e\"",  "-",     "20",     "2024-01"})
    bytes.emplace_back(text);
  bytes.emplace_back("");
  const auto end = static_cast<int64_t>(bytes.size()) - 1;
  const auto size = static_cast<int64_t>(bytes.size());
  return std::make_shared<const ConstraintVocabulary>(std::move(bytes), std::vector<int64_t>{end}, size);
}

inline std::vector<int64_t> allowed_tokens(const ConstraintState& state, int64_t size) {
  std::vector<uint32_t> bits(static_cast<size_t>(size + 31) / 32);
  state.allowed(bits);
  std::vector<int64_t> tokens;
  for (int64_t token = 0; token < size; ++token)
    if ((bits[static_cast<size_t>(token) / 32] >> (token % 32)) & 1U) tokens.push_back(token);
  return tokens;
}

// A text under the mask, with random tokens; none where it did not end within `steps`, an Error where nothing
// was allowed. Ends and closing bytes are preferred more and more, so that most texts end.
inline std::optional<std::string> random_text(const Constraint& constraint,
                                              const ConstraintVocabulary& vocabulary, uint64_t seed,
                                              int steps = 400) {
  std::mt19937_64 random(seed);
  const std::unique_ptr<ConstraintState> state = constraint.start();
  std::string text;
  for (int i = 0; i < steps; ++i) {
    std::vector<int64_t> tokens = allowed_tokens(*state, vocabulary.size);
    if (tokens.empty()) throw std::runtime_error("dead end behind: " + text);
    const int64_t end = vocabulary.end_tokens[0];
    if (tokens.back() == end && (tokens.size() == 1 || random() % 4 == 0)) return text;
    int64_t chosen = tokens[random() % tokens.size()];
    if (static_cast<int>(random() % 200) < i) {
      for (int64_t token : tokens)
        for (const char* closing : {"}", "]", "\"", "\"}", "\"}}"})
          if (vocabulary.bytes[static_cast<size_t>(token)] == closing && token != end) chosen = token;
    }
    if (chosen == end) return text;
    text += vocabulary.bytes[static_cast<size_t>(chosen)];
    state->advance(chosen);
  }
  return {};
}

// Whether the mask lets a text through byte by byte, and then lets it end.
inline bool accepts(const Constraint& constraint, const ConstraintVocabulary& vocabulary,
                    std::string_view text) {
  const std::unique_ptr<ConstraintState> state = constraint.start();
  const auto is_allowed = [&](int64_t token) {
    std::vector<uint32_t> bits(static_cast<size_t>(vocabulary.size + 31) / 32);
    state->allowed(bits);
    return (bits[static_cast<size_t>(token) / 32] >> (token % 32)) & 1U;
  };
  for (char c : text) {
    const auto token = static_cast<int64_t>(static_cast<uint8_t>(c));
    if (!is_allowed(token)) return false;
    state->advance(token);
  }
  return is_allowed(vocabulary.end_tokens[0]);
}

}  // namespace megatron
