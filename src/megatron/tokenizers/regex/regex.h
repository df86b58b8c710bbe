#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/aligned_text.h"

namespace megatron::tokenizers {

struct RegexProgram;

// A regular expression over UTF-8 text, as split patterns of tokenizers are written: alternatives, groups,
// classes with \p{…}, quantifiers (greedy, lazy, possessive), look-ahead and look-behind of one character,
// (?i). It matches as Perl does, leftmost and first alternative. Unlike a library it has the Unicode version
// of the tokenizers that we follow.
class Regex {
 public:
  // An Error names what the pattern has that is not known.
  explicit Regex(std::string_view pattern);

  // The first match that begins at `from` or behind it. A pattern that backtracks without end is an Error.
  std::optional<ByteRange> find(std::string_view text, size_t from) const;

  // All matches, one behind the other. An empty one where the match before it ends does not count.
  std::vector<ByteRange> find_all(std::string_view text) const;

 private:
  std::shared_ptr<const RegexProgram> program_;
};

}  // namespace megatron::tokenizers
