#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/aligned_text.h"
#include "megatron/tokenizers/regex/regex.h"
#include "megatron/tokenizers/word_scanner.h"

namespace megatron::tokenizers {

// A pattern of a Split or Replace: a plain text, a published split pattern with a scanner of its own, or any
// other regular expression.
class SplitPattern {
 public:
  // {"String": …} or {"Regex": …}.
  explicit SplitPattern(const Json& settings);
  static SplitPattern text(std::string text);
  static SplitPattern regex(std::string_view pattern);

  // All matches, ascending and apart.
  std::vector<ByteRange> matches(std::string_view text) const;
  // The rules where the pattern is a published one.
  const std::optional<WordRules>& rules() const { return rules_; }

 private:
  SplitPattern() = default;

  std::string text_;
  std::optional<WordRules> rules_;
  std::optional<Regex> regex_;
};

}  // namespace megatron::tokenizers
