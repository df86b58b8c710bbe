#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace megatron::tokenizers {

// The published split patterns, as a choice for each of their alternatives. Every character of a text belongs
// to some word of such a pattern, so words tile the text.
struct WordRules {
  enum class Letters : uint8_t {
    spaced,    // ` ?\p{L}+`: GPT-2
    prefixed,  // `[^\r\n\p{L}\p{N}]?\p{L}+`: cl100k, Llama 3, Qwen 2
    cased,     // upper case, then lower case, marks in both: o200k
  };
  enum class Contractions : uint8_t {
    none,
    lower,   // 's, 't, … before all others, in lower case: GPT-2
    before,  // in any case
    behind,  // in any case, at the end of a word: o200k
  };
  Letters letters = Letters::spaced;
  Contractions contractions = Contractions::none;
  uint8_t digits = 0;      // at most as many in a word; 0: any number, with a space before
  bool line_ends = false;  // `[\r\n]*` behind symbols, and `\s*[\r\n]+`
  bool slashes = false;    // '/' with those behind symbols
  bool whole_end = false;  // `\s++$`: spaces that end the text are one word

  // The rules of a pattern; none where it is not one of those. Whether `{1,3}+` is possessive or repeats what
  // stands before it depends on who reads the pattern: tiktoken says the former, Hugging Face the latter.
  static std::optional<WordRules> of(std::string_view pattern, bool possessive_bounds = false);

  friend bool operator==(const WordRules&, const WordRules&) = default;
};

// The end of the word that begins at `at` < size. The text is valid UTF-8.
size_t word_end(const WordRules& rules, const char* text, size_t at, size_t size);

}  // namespace megatron::tokenizers
