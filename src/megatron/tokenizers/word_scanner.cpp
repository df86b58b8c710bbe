#include "megatron/tokenizers/word_scanner.h"

#include "megatron/tokenizers/word_scanner_inl.h"

namespace megatron::tokenizers {
namespace {

constexpr std::string_view kUpperSet = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])",
                           kLowerSet = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";

// Takes text from the front of a pattern.
bool take(std::string_view& pattern, std::string_view text) {
  if (!pattern.starts_with(text)) return false;
  pattern.remove_prefix(text.size());
  return true;
}

template <class... Texts>
bool take_one(std::string_view& pattern, Texts... texts) {
  return (take(pattern, texts) || ...);
}

}  // namespace

// Possessive forms (`?+`, `++`) match what plain ones do here, since what follows never begins inside.
std::optional<WordRules> WordRules::of(std::string_view pattern, bool possessive_bounds) {
  WordRules rules;
  std::string_view rest = pattern;
  constexpr std::string_view any_case = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
  if (take_one(rest, "'s|'t|'re|'ve|'m|'ll|'d|", "'(?:[sdmt]|ll|ve|re)|"))
    rules.contractions = Contractions::lower;
  else if (take_one(rest, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|", "'(?i:[sdmt]|ll|ve|re)|"))
    rules.contractions = Contractions::before;

  const auto take_cased = [&](bool first) {
    std::string_view copy = rest;
    if (!take(copy, R"([^\r\n\p{L}\p{N}]?)") || !take(copy, kUpperSet) || !take(copy, first ? "*" : "+") ||
        !take(copy, kLowerSet) || !take(copy, first ? "+" : "*"))
      return false;
    if (take(copy, any_case)) {
      if (!take(copy, "?")) return false;
      rules.contractions = Contractions::behind;
    } else if (rules.contractions == Contractions::behind) {
      return false;
    }
    rest = copy;
    return take(rest, "|");
  };
  if (take_one(rest, R"( ?\p{L}+|)", R"( ?\p{L}++|)")) {
    rules.letters = Letters::spaced;
  } else if (take_one(rest, R"([^\r\n\p{L}\p{N}]?\p{L}+|)", R"([^\r\n\p{L}\p{N}]?+\p{L}+|)",
                      R"([^\r\n\p{L}\p{N}]?+\p{L}++|)")) {
    rules.letters = Letters::prefixed;
  } else if (rules.contractions == Contractions::none && take_cased(true) && take_cased(false)) {
    rules.letters = Letters::cased;
  } else {
    return std::nullopt;
  }

  if (take_one(rest, R"( ?\p{N}+|)", R"( ?\p{N}++|)")) {
    rules.digits = 0;
  } else if (take_one(rest, R"(\p{N}|)", R"(\p{N}{1}|)")) {
    rules.digits = 1;
  } else if (rest.starts_with(R"(\p{N}{1,)") && rest.size() > 10 && rest[8] >= '2' && rest[8] <= '9' &&
             rest[9] == '}') {
    rules.digits = static_cast<uint8_t>(rest[8] - '0');
    rest.remove_prefix(10);
    if (possessive_bounds) take(rest, "+");
    if (!take(rest, "|")) return std::nullopt;
  } else {
    return std::nullopt;
  }

  if (!take_one(rest, R"( ?[^\s\p{L}\p{N}]++)", R"( ?[^\s\p{L}\p{N}]+)")) return std::nullopt;
  if (take_one(rest, R"([\r\n]*+|)", R"([\r\n]*|)")) {
    rules.line_ends = true;
  } else if (take_one(rest, R"([\r\n/]*+|)", R"([\r\n/]*|)")) {
    rules.line_ends = rules.slashes = true;
  } else if (!take(rest, "|")) {
    return std::nullopt;
  }
  rules.whole_end = take(rest, R"(\s++$|)");
  const bool lines = take_one(rest, R"(\s*[\r\n]+|)", R"(\s*[\r\n]|)");
  if (lines != rules.line_ends || (rules.letters == Letters::spaced && rules.line_ends)) return std::nullopt;
  if (rest != R"(\s+(?!\S)|\s+)" && rest != R"(\s+(?!\S)|\s)") return std::nullopt;
  return rules;
}

size_t word_end(const WordRules& rules, const char* text, size_t at, size_t size) {
  return scan_word(rules, {text, size}, at);
}

}  // namespace megatron::tokenizers
