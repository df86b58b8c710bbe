#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/aligned_text.h"

namespace megatron::tokenizers {

// SentencePiece's compiled normalization rules: a double-array trie (Darts' format) over what is replaced,
// then the replacements, each ended by a NUL.
class CharMap {
 public:
  CharMap() = default;
  // `origin` begins the message of the Error that a malformed map gives.
  CharMap(std::string_view blob, std::string_view origin);

  bool empty() const { return units_.empty(); }
  struct Match {
    size_t length = 0;  // 0: no rule
    std::string_view replacement;
  };
  // The longest rule that a text begins with.
  Match longest(std::string_view text) const;
  // The shortest one: what Hugging Face's Precompiled applies.
  Match shortest(std::string_view text) const;

 private:
  template <class Visit>
  void prefixes(std::string_view text, Visit visit) const;
  Match replacement(size_t length, uint32_t offset) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace megatron::tokenizers
